#include "platform/os/process.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>

#include <cstdint>
#include <limits>
#include <mutex>
#include <thread>

#include "platform/os/per_process.h"
#include "platform/os/user_name.h"
#include "tests/os/os_test.h"
#include "tests/support/child.h"
#include "tests/support/fork.h"
#include "tests/support/same_process_id_posix.h"

namespace vmm::platform {
namespace {

using testing::Child;
using testing::RegisterChild;

class ProcessTest : public OsTest {};

int Pause(const std::vector<std::string>&) {
  for (;;) ::pause();
}
int Return7(const std::vector<std::string>&) { return 7; }
const bool kPause = RegisterChild("pause", &Pause);
const bool kReturn7 = RegisterChild("return7", &Return7);

// Ends by itself as soon as it runs; not reaped.
class Ended {
 public:
  Ended() : pid_(::fork()) {
    if (pid_ == 0) ::_exit(0);
  }
  ~Ended() { Reap(); }
  void Reap() {
    if (pid_ > 0) ::waitpid(std::exchange(pid_, -1), nullptr, 0);
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
};

TEST_F(ProcessTest, ThisProcessRuns) {
  Process self = Must(Process::Open(CurrentProcessId()));
  EXPECT_EQ(self.pid(), ::getpid());
  EXPECT_FALSE(Must(self.HasExited()));
}

TEST_F(ProcessTest, RefusesNumbersThatAreNoIds) {
  for (const std::int64_t pid :
       {std::int64_t{0}, std::int64_t{-1}, std::int64_t{1} << 32,
        std::numeric_limits<std::int64_t>::min()}) {
    EXPECT_TRUE(absl::IsInvalidArgument(Process::Open(pid).status())) << pid;
  }
}

TEST_F(ProcessTest, AReapedProcessIsNotFound) {
  Ended ended;
  const pid_t pid = ended.pid();
  ended.Reap();
  const absl::Status status = Process::Open(pid).status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_NE(status.message().find(std::to_string(pid)), std::string::npos);
}

TEST_F(ProcessTest, AZombieCountsAsExited) {
  Ended ended;
  Process process = Must(Process::Open(ended.pid()));
  EXPECT_TRUE(process.WaitForExit(Late()).ok());
  EXPECT_TRUE(Must(process.HasExited()));  // Not reaped yet.
  ended.Reap();
  EXPECT_TRUE(Must(process.HasExited()));
}

TEST_F(ProcessTest, SeesAKilledProcessEnd) {
  Child child = Child::Start("pause", {});
  Process process = Must(Process::Open(child.pid()));
  EXPECT_FALSE(Must(process.HasExited()));
  child.Kill();
  EXPECT_TRUE(process.WaitForExit(Late()).ok());
  EXPECT_EQ(child.Wait(), 128 + SIGKILL);
}

TEST_F(ProcessTest, AStoppedProcessHasNotExited) {
  Child child = Child::Start("pause", {});
  Process process = Must(Process::Open(child.pid()));
  child.Stop();
  EXPECT_FALSE(Must(process.HasExited()));
}

TEST_F(ProcessTest, WaitingEndsAtTheDeadline) {
  Process self = Must(Process::Open(CurrentProcessId()));
  const absl::Time start = absl::Now();
  const absl::Status status = self.WaitForExit(start + absl::Milliseconds(50));
  const absl::Duration elapsed = absl::Now() - start;
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_GE(elapsed, absl::Milliseconds(50));
  EXPECT_LT(elapsed, absl::Seconds(10));
}

TEST_F(ProcessTest, ADeadlineInThePastDoesNotWait) {
  Process self = Must(Process::Open(CurrentProcessId()));
  EXPECT_TRUE(absl::IsDeadlineExceeded(self.WaitForExit(absl::InfinitePast())));
}

TEST_F(ProcessTest, WaitingWithoutADeadlineEndsWithTheProcess) {
  Child child = Child::Start("pause", {});
  Process process = Must(Process::Open(child.pid()));
  std::thread killer([&child] { child.Kill(); });
  EXPECT_TRUE(process.WaitForExit(absl::InfiniteFuture()).ok());
  killer.join();
}

TEST_F(ProcessTest, ItsHandleIsNotInherited) {
  Process self = Must(Process::Open(CurrentProcessId()));
  EXPECT_EQ(::fcntl(RawFd(self.handle()), F_GETFD), FD_CLOEXEC);
}

TEST_F(ProcessTest, FromHandleTakesOver) {
  Process self = Must(Process::Open(CurrentProcessId()));
  OsHandle second = Must(Duplicate(self.handle()));
  Process again = Process::FromHandle(std::move(second), 42);
  EXPECT_EQ(again.pid(), 42);
  EXPECT_FALSE(Must(again.HasExited()));
}

TEST_F(ProcessTest, ItsIdentityIsThatOfNoOther) {
  const Process self = Must(Process::Open(CurrentProcessId()));
  const std::uint64_t identity = self.Identity();
  if (identity == 0) GTEST_SKIP() << "all pidfds are one file before Linux 6.9";
  EXPECT_EQ(Must(Process::Open(CurrentProcessId())).Identity(), identity);
  Child child = Child::Start("pause", {});
  const Process other = Must(Process::Open(child.pid()));
  EXPECT_NE(other.Identity(), 0u);
  EXPECT_NE(other.Identity(), identity);
}

TEST_F(ProcessTest, Pitfall29AReferenceNeverComesToMeanAnotherProcess) {
  Ended first;
  Process process = Must(Process::Open(first.pid()));
  ASSERT_TRUE(process.WaitForExit(Late()).ok());
  first.Reap();
  // Whatever ids these get, the reference still means the one that ended.
  Child second = Child::Start("pause", {});
  Child third = Child::Start("pause", {});
  EXPECT_TRUE(Must(process.HasExited()));
  EXPECT_FALSE(Must(Must(Process::Open(second.pid())).HasExited()));
}

TEST_F(ProcessTest, UserAndIdAreThoseOfTheSystem) {
  EXPECT_EQ(CurrentUser().text(), std::to_string(::geteuid()));
  EXPECT_EQ(CurrentProcessId(), ::getpid());
  EXPECT_EQ(UserId("5"), UserId("5"));
  EXPECT_NE(UserId("5"), UserId("05"));
  EXPECT_STREQ(SystemDriverName(), "libcuda.so.1");
}

// What IsForkedChild() answers in a child that is forked now.
bool AnsweredInAFork() {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(IsForkedChild() ? 1 : 0);
  int status = 0;
  ::waitpid(pid, &status, 0);
  Check(WIFEXITED(status), "the forked child did not exit");
  return WEXITSTATUS(status) == 1;
}

TEST_F(ProcessTest, AForkOfAUserOfVmmshareIsAForkedChild) {
  EXPECT_FALSE(IsForkedChild());
  EXPECT_TRUE(AnsweredInAFork());
  EXPECT_FALSE(IsForkedChild());
}

TEST_F(ProcessTest, AForkThatHasItsParentsIdIsAForkedChild) {
  const testing::SameProcessId same;
  EXPECT_FALSE(IsForkedChild());
  EXPECT_TRUE(AnsweredInAFork());
  const std::uint64_t mark = ProcessMark();
  EXPECT_NE(mark, 0u);
  EXPECT_EQ(ProcessMark(), mark);
  EXPECT_EQ(
      testing::RunInFork([mark] { return ProcessMark() != mark ? 0 : 1; }), 0);
}

TEST_F(ProcessTest, WhatWasMadeHereIsNotHereInAFork) {
  const MadeHere made;
  EXPECT_TRUE(made.is_still_here());
  EXPECT_EQ(testing::RunInFork([made] {
              return !made.is_still_here() && MadeHere().is_still_here() ? 0
                                                                         : 1;
            }),
            0);
  EXPECT_TRUE(made.is_still_here());
}

// A fresh process, which has not used vmmshare yet.
int ForkBeforeUse(const std::vector<std::string>&) {
  EXPECT_FALSE(AnsweredInAFork());
  Must(Channel::Pair());  // A use: from here on, children are its children.
  EXPECT_TRUE(AnsweredInAFork());
  return 0;
}
const bool kForkBeforeUse = RegisterChild("fork_before_use", &ForkBeforeUse);

struct OneAProcess {
  std::mutex mutex;
  int value = 0;
};
constinit PerProcess<OneAProcess> one_a_process;

TEST_F(ProcessTest, AForkedChildHasAnotherOfWhatAProcessHasOne) {
  OneAProcess& parents = one_a_process.Get();
  parents.value = 5;
  // Nobody is there to let go of it in the child.
  const std::lock_guard lock(parents.mutex);
  const pid_t pid = ::fork();
  if (pid == 0) {
    bool as_expected =
        one_a_process.Find() == nullptr && one_a_process.IsOfParentAlone();
    OneAProcess& own = one_a_process.Get();
    as_expected &= own.value == 0 && own.mutex.try_lock();
    as_expected &=
        one_a_process.Find() == &own && !one_a_process.IsOfParentAlone();
    ::_exit(as_expected ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_EQ(one_a_process.Find(), &parents);
  EXPECT_EQ(one_a_process.Get().value, 5);
}

TEST_F(ProcessTest, AWorkerForkedBeforeFirstUseIsNone) {
  EXPECT_EQ(Child::Start("fork_before_use", {}).Wait(), 0);
}

TEST_F(ProcessTest, TestChildrenAnswerTheirExitStatus) {
  EXPECT_EQ(Child::Start("return7", {}).Wait(), 7);
}

TEST(UserId, HasAnOrder) {
  EXPECT_LT(UserId("1000"), UserId("1001"));
  EXPECT_GT(UserId("2"), UserId("1001"));
  EXPECT_LE(UserId("7"), UserId("7"));
  EXPECT_EQ(UserId("7") <=> UserId("7"), std::strong_ordering::equal);
}

TEST(ParseUser, TakesUidsAndNamesOfUsersThatAreThere) {
  EXPECT_EQ(ParseUser("0").value(), UserId("0"));
  EXPECT_EQ(ParseUser("root").value(), UserId("0"));
  EXPECT_EQ(ParseUser("0001000").value(), UserId("1000"));
  EXPECT_EQ(ParseUser("4294967294").value(), UserId("4294967294"));
}

TEST(ParseUser, RefusesWhatIsNobody) {
  for (const char* text :
       {"", "-1", "+1", " 1", "4294967295", "4294967296", "nosuchuser-xyz",
        "99999999999999999999", "0x10", "1000 "}) {
    const absl::Status refused = ParseUser(text).status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << text << ": " << refused;
  }
}

}  // namespace
}  // namespace vmm::platform
