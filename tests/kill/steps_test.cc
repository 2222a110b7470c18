// What the kill matrix rests on: steps are counted, and a process ends at the
// one that was chosen.
#include "tests/support/steps.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "platform/ipc/shared_memory.h"
#include "tests/ipc/vmm_ipc_test.h"
#include "tests/support/driver_faults.h"
#include "tests/support/syscall_faults.h"

namespace vmm::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;

// Marks, and connects. Returns the steps.
std::vector<std::string> TakeSteps(const StepTrap& trap,
                                   const std::string& address) {
  ArmSteps(trap);
  MarkStep("first");
  std::thread([] { MarkStep("second, on another thread"); }).join();
  const platform::Channel channel = Dial(address);
  return DisarmSteps();
}

// args: where to; effect, step, whether after.
int StepVictim(const std::vector<std::string>& args) {
  TakeSteps({.effect = static_cast<StepEffect>(std::stoi(args[1])),
             .nth = std::stoull(args[2]),
             .after = args[3] == "1"},
            args[0]);
  return 0;
}
const bool kStepVictim = RegisterChild("step-victim", &StepVictim);

// Returns which of the steps is the call that connects. args: where to.
int StepCounter(const std::vector<std::string>& args) {
  const std::vector<std::string> steps = TakeSteps({}, args[0]);
  return static_cast<int>(std::find(steps.begin(), steps.end(), "connect") -
                          steps.begin());
}
const bool kStepCounter = RegisterChild("step-counter", &StepCounter);

class Steps : public IpcTest {
 protected:
  Child Start(StepEffect effect, std::uint64_t nth, bool after) {
    return Child::Start("step-victim",
                        {address(), absl::StrCat(static_cast<int>(effect)),
                         absl::StrCat(nth), after ? "1" : "0"});
  }
  bool Connected() {
    return listener().Accept(absl::Now() + absl::Milliseconds(1)).ok();
  }
};

TEST_F(Steps, AreDriverCallsAndMarksWhileTheyAreCounted) {
  DriverFaults faults;
  const platform::Driver driver = FaultyDriver(TestDriver(), &faults);
  int count = 0;
  MarkStep("too early");
  ArmSteps({});
  MarkStep("first");
  EXPECT_EQ(driver->cuDeviceGetCount(&count), CUDA_SUCCESS);
  MarkStep("last");
  EXPECT_THAT(DisarmSteps(), ElementsAre("first", "cuDeviceGetCount", "last"));
  MarkStep("too late");
  ArmSteps({});
  EXPECT_THAT(DisarmSteps(), IsEmpty());
}

TEST_F(Steps, AreNotWhatADriverCalls) {
  ArmSteps({});
  {
    const internal::Step call("cuStreamCreate",
                              internal::StepKind::kDriverCall);
    const internal::Step within("pthread_create");
    // That of another thread, meanwhile, is one.
    std::thread([] { MarkStep("another thread"); }).join();
  }
  MarkStep("last");
  EXPECT_THAT(DisarmSteps(),
              ElementsAre("cuStreamCreate", "another thread", "last"));
}

TEST_F(Steps, AreSystemCallsOfTheLibrary) {
  if (!SyscallFaultsSupported()) GTEST_SKIP() << "none are replaced here";
  ArmSteps({});
  const absl::Status made =
      platform::SharedMemory::Create(4096, platform::PeerAccess::kRead)
          .status();
  const std::vector<std::string> steps = DisarmSteps();
  EXPECT_TRUE(made.ok()) << made;
  EXPECT_THAT(steps, IsSupersetOf({"memfd_create", "mmap", "munmap", "close"}));
}

TEST_F(Steps, OfEveryThreadEndTheProcess) {
  for (std::uint64_t step = 0; step < 2; ++step) {
    Child child = Start(StepEffect::kKill, step, false);
    EXPECT_EQ(child.Wait(), Child::kKilled) << step;
    EXPECT_FALSE(Connected());
  }
}

TEST_F(Steps, ThatNeverComeEndNothing) {
  Child child = Start(StepEffect::kKill, 100'000, false);
  EXPECT_EQ(child.Wait(), 0);
}

TEST_F(Steps, EndTheProcessBeforeTheCallOrAfterIt) {
  if (!SyscallFaultsSupported()) GTEST_SKIP() << "none are replaced here";
  const int connect = Child::Start("step-counter", {address()}).Wait();
  EXPECT_TRUE(Connected());
  for (const bool after : {false, true}) {
    Child child =
        Start(StepEffect::kKill, static_cast<std::uint64_t>(connect), after);
    EXPECT_EQ(child.Wait(), Child::kKilled);
    EXPECT_EQ(Connected(), after);
  }
}

TEST_F(Steps, StopTheProcessUntilItIsToldToGoOn) {
  if (!StopsSupported()) GTEST_SKIP() << "a process cannot stop itself here";
  Child child = Start(StepEffect::kStop, 0, true);
  ExpectSoon([&] { return child.IsStopped(); });
  EXPECT_FALSE(Connected());
  child.Continue();
  EXPECT_EQ(child.Wait(), 0);
  EXPECT_TRUE(Connected());
}

}  // namespace
}  // namespace vmm::testing
