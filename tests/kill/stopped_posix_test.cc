// One of two processes that share memory is stopped (SIGSTOP) before or after
// each of its steps. The other one's calls end at their deadlines; once the
// first goes on, both come to an end and give everything back.
//
// A call may be 50 ms later than its deadline, and by as much as the machine is
// late itself: see watch.h. On a loaded machine a call that needs the processor
// again and again is late more often than a thread that only sleeps, so a
// point counts as late when it is so three times in a row.
//
// VMMSHARE_STOPS: how often at each point. VMMSHARE_STOP_EVERY: one point in so
// many.
#include <gmock/gmock.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/kill/run.h"
#include "tests/support/emulator.h"
#include "tests/support/how_many.h"

namespace vmm::testing {
namespace {

using ::testing::AnyOf;
using ::testing::Eq;

constexpr absl::Duration kMayBeLate = absl::Milliseconds(50);
constexpr int kTries = 3;

// Longer than the other side takes for a step if it does not stand still.
absl::Duration CallTime() {
  return OnHostMemoryDriver() && !IsEmulated() ? absl::Milliseconds(25)
                                               : absl::Milliseconds(500);
}

class Stopped : public MatrixTest, public ::testing::WithParamInterface<Case> {
 protected:
  void StopAt(const StepTrap& trap, Tally* tally) {
    Played run;
    for (int i = 0; i < kTries; ++i) {
      run = RunOnce(GetParam(), trap, CallTime());
      EXPECT_EQ(run.victim, 0) << "it went on";
      EXPECT_THAT(run.survivor.code(),
                  AnyOf(Eq(absl::StatusCode::kOk),
                        Eq(absl::StatusCode::kDeadlineExceeded),
                        Eq(absl::StatusCode::kUnavailable)))
          << run.survivor;
      if (run.measured.latest <= kMayBeLate) break;
      std::printf("once more: %s was late by %s\n", run.measured.latest_call,
                  absl::FormatDuration(run.measured.latest).c_str());
    }
    EXPECT_LE(run.measured.latest, kMayBeLate) << run.measured.latest_call;
    tally->Add(run, trap);
  }
};

TEST_P(Stopped, TheOtherSidesCallsEndAtTheirDeadlines) {
  Tally tally;
  const std::vector<std::string> steps = CountSteps(GetParam());
  const std::vector<std::uint64_t> tried = StepsToTry(steps);
  const std::uint64_t times = HowMany("VMMSHARE_STOPS", 1);
  const std::uint64_t every =
      std::max<std::uint64_t>(1, HowMany("VMMSHARE_STOP_EVERY", 3));
  tally.steps = tried.size();
  for (std::uint64_t point = 0; point < 2 * tried.size(); point += every) {
    const StepTrap trap{.effect = StepEffect::kStop,
                        .nth = tried[point / 2],
                        .after = point % 2 == 1};
    SCOPED_TRACE(absl::StrCat(trap.after ? "after" : "before", " step ",
                              trap.nth, ", likely ", steps[trap.nth]));
    ++tally.points;
    for (std::uint64_t i = 0; i < times; ++i) StopAt(trap, &tally);
    if (HasFailure()) break;
  }
  EXPECT_TRUE(NewPairShares(GetParam()));
  ++tally.pairs;
  tally.Print("stopped", GetParam());
  EXPECT_GT(tally.met_while_stopped, 0u) << "nobody waited for it";
}

INSTANTIATE_TEST_SUITE_P(Matrix, Stopped, ::testing::ValuesIn(AllCases()),
                         [](const auto& which) { return NameOf(which.param); });

}  // namespace
}  // namespace vmm::testing
