// Random calls of the C interface by the threads of two processes, of which one is
// killed again and again, and nobody finds anything (caller.h). After each round all
// is closed, and nobody holds more than before.
//
// VMMSHARE_SEED chooses the calls, VMMSHARE_CALLS_SECONDS how long they go on; without
// it there are none. Of several threads the order is another one each time: a seed
// finds again what one thread does wrong, and the rest as a rule.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/ipc/keeper_ipc_test.h"
#include "tests/soak/part.h"
#include "tests/soak/player.h"
#include "tests/support/emulator.h"
#include "tests/support/how_many.h"

namespace vmm::testing {
namespace {

using Life = Player::Life;

class Calls : public IpcTest {
 protected:
  void SetUp() override {
    if (IsEmulated()) GTEST_SKIP() << kStartsNothing;
    // What is random may fail once in some hundred runs, and is to be looked at then.
    if (std::getenv("VMMSHARE_CALLS_SECONDS") == nullptr) {
      GTEST_SKIP() << "random: ./dev nightly calls";
    }
    // Each thread has a stream, as do arrays of fences, and any may wait: with fewer
    // queues what ends a wait may be behind one (docs/ordering.md).
    ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);
    std::cout << "calls: VMMSHARE_SEED=" << seed_ << std::endl;
  }

  std::vector<std::string> Args(const std::string& faults) {
    return {directory(), KeeperAddressIn(directory()),
            absl::StrCat(seed_ * 100 + ++processes_), faults};
  }

  // Of `steady` and whoever `mortal` starts, for some seconds.
  void Work(Player& steady, const std::string& faults, absl::Duration time) {
    const absl::Time end = absl::Now() + time;
    steady.Go();
    while (absl::Now() < end && !HasFailure()) {
      Player mortal("caller", Life::kMortal, listener(), Args(faults));
      mortal.Start();
      mortal.Go();
      // A pace, not a condition.
      absl::SleepFor(std::min(end - absl::Now(),
                              absl::Milliseconds(500 + dice_.Below(3000))));
      mortal.Kill();
    }
    steady.Rest();
  }

  // Rounds, of which the first says what is held by who has done everything once.
  void Run(const std::string& faults) {
    Player keeper("keeper", Life::kSteady, listener(), {directory()});
    keeper.Start();
    keeper.Go();
    Player steady("caller", Life::kSteady, listener(), Args(faults));
    steady.Start();
    const absl::Duration time =
        absl::Seconds(HowMany("VMMSHARE_CALLS_SECONDS", 6)) / 2;
    const absl::Duration round = std::min(time / 2, absl::Seconds(20));
    ProcessUsage most;
    int rounds = 0;
    for (const absl::Time end = absl::Now() + time;
         (rounds < 2 || absl::Now() < end) && !HasFailure(); ++rounds) {
      Work(steady, faults, round);
      if (HasFailure()) return;
      std::cout << "calls: " << steady.Uses().descriptors << " descriptors, "
                << steady.Uses().threads << " threads" << std::endl;
      if (rounds == 0) {
        most = steady.Uses();
      } else {
        ExpectNoMore(steady, most);
      }
    }
    std::cout << "calls: " << rounds << " rounds, " << processes_ - 1
              << " processes killed, " << steady.steps() << " steps\n";
    steady.End();
    keeper.End();
  }

 private:
  // Threads and descriptors that the library keeps once they were needed, which a
  // round may be the first to need. Who leaks has more with each of hundreds of
  // calls.
  static constexpr std::size_t kFew = 8;

  void ExpectNoMore(const Player& player, const ProcessUsage& most) {
    ProcessUsage now;
    ExpectSoon([&] {
      now = player.Uses();
      return now.descriptors <= most.descriptors + kFew &&
             now.threads <= most.threads + kFew;
    });
    EXPECT_LE(now.descriptors, most.descriptors + kFew);
    EXPECT_LE(now.threads, most.threads + kFew);
  }

  const std::uint64_t seed_ = HowMany("VMMSHARE_SEED", 1);
  std::uint64_t processes_ = 0;
  Dice dice_;
};

TEST_F(Calls, KeepTheirPromises) { Run("none"); }

TEST_F(Calls, KeepTheirPromisesWhereOthersFail) { Run("faults"); }

// The way that a finding takes from the process that has it to this test.
TEST_F(Calls, ADriverThatGivesNothingBackIsFound) {
  const std::vector<std::string> args = Args("control");
  std::vector<std::string> all = {listener().address()};
  all.insert(all.end(), args.begin(), args.end());
  Child child = Child::Start(
      "soak-caller", all, {{"VMMSHARE_HOST_FAIL", "cuMemRelease:2+:UNKNOWN"}});
  platform::Channel orders = Must(listener().Accept(Late()));
  Must(Say(orders, "go"));
  const absl::Status said = Say(orders, "rest");
  EXPECT_EQ(child.Wait(absl::Now() + absl::Minutes(2)), 1) << said;
}

}  // namespace
}  // namespace vmm::testing
