// One of two processes that share memory is killed before or after each of its
// steps: every driver call, every system call, and places where it has written
// to memory that both see. The other one is told so by a status, keeps what it
// has, and gives everything back.
//
// VMMSHARE_KILLS: how often at each point. VMMSHARE_KILL_EVERY: one point in so
// many.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/kill/run.h"
#include "tests/support/how_many.h"

namespace vmm::testing {
namespace {

using ::testing::AnyOf;
using ::testing::Eq;

// No call of a survivor waits for so long: it is told of the end.
constexpr absl::Duration kPatience = absl::Seconds(20);
// After so many points two new processes share once more; and after the last.
constexpr std::uint64_t kPointsToANewPair = 25;

class Killed : public MatrixTest, public ::testing::WithParamInterface<Case> {
 protected:
  // `effect` at each point, as often as the environment says.
  Tally AtEachPoint(StepEffect effect) {
    Tally tally;
    const std::vector<std::string> steps = CountSteps(GetParam());
    const std::uint64_t times = HowMany("VMMSHARE_KILLS", 1);
    const std::uint64_t every =
        std::max<std::uint64_t>(1, HowMany("VMMSHARE_KILL_EVERY", 1));
    const std::vector<std::uint64_t> tried = StepsToTry(steps);
    tally.steps = tried.size();
    for (std::uint64_t point = 0; point < 2 * tried.size(); point += every) {
      const StepTrap trap{
          .effect = effect, .nth = tried[point / 2], .after = point % 2 == 1};
      SCOPED_TRACE(absl::StrCat(trap.after ? "after" : "before", " step ",
                                trap.nth, ", likely ", steps[trap.nth]));
      ++tally.points;
      for (std::uint64_t i = 0; i < times; ++i) {
        const Played run = RunOnce(GetParam(), trap, kPatience);
        tally.Add(run, trap);
        Judge(run, trap);
        if (HasFailure()) return tally;
      }
      if (tally.points % kPointsToANewPair == 0) ExpectANewPair(&tally);
    }
    ExpectANewPair(&tally);
    return tally;
  }

 private:
  static void Judge(const Played& run, const StepTrap& trap) {
    // With fewer steps than were counted it may have come through.
    EXPECT_THAT(run.victim, AnyOf(Eq(Child::kKilled), Eq(0)));
    EXPECT_THAT(run.survivor.code(), AnyOf(Eq(absl::StatusCode::kOk),
                                           Eq(absl::StatusCode::kUnavailable),
                                           Eq(absl::StatusCode::kNotFound)))
        << run.survivor;
    if (run.victim == 0 && trap.effect == StepEffect::kKill) {
      EXPECT_TRUE(run.survivor.ok()) << "nobody died: " << run.survivor;
    }
    EXPECT_EQ(run.measured.deadlines_met, 0) << run.survivor;
  }
  void ExpectANewPair(Tally* tally) {
    EXPECT_TRUE(NewPairShares(GetParam()));
    ++tally->pairs;
  }
};

TEST_P(Killed, TheOtherSideLosesNothing) {
  const Tally tally = AtEachPoint(StepEffect::kKill);
  tally.Print("killed", GetParam());
  EXPECT_LT(tally.too_late, tally.runs / 2 + 1);
}

INSTANTIATE_TEST_SUITE_P(Matrix, Killed, ::testing::ValuesIn(AllCases()),
                         [](const auto& which) { return NameOf(which.param); });

// On a GPU a process that is being killed hangs up some 30 ms before its memory
// is taken down (measured on H100): so long it must be taken for alive.
class HungUp : public Killed {};

TEST_P(HungUp, ItsBlockIsNotHandedOutBeforeItHasEnded) {
  if (!StopsSupported()) GTEST_SKIP() << "a process cannot stop itself here";
  const Tally tally = AtEachPoint(StepEffect::kHangUp);
  tally.Print("hung up and killed later", GetParam());
}

INSTANTIATE_TEST_SUITE_P(
    Matrix, HungUp,
    ::testing::Values(Case{&FindScene("Pool"), Side::kImporter},
                      Case{&FindScene("PoolFreed"), Side::kImporter}),
    [](const auto& which) { return NameOf(which.param); });

class KillMatrix : public MatrixTest {};

TEST(BytesOfNone, TakesAPartOfAPatternAndNoForeignByte) {
  constexpr std::size_t kSize = 64 << 10;
  const std::vector<std::uint8_t> before = Pattern(1, kSize);
  const std::vector<std::uint8_t> after = Pattern(2, kSize);
  EXPECT_EQ(BytesOfNone(after, {1, 2}), 0u);
  EXPECT_GT(BytesOfNone(after, {1, 3}), kSize / 2);
  // The writer stood still half-way.
  std::vector<std::uint8_t> bytes = after;
  std::copy(before.begin() + kSize / 2, before.end(),
            bytes.begin() + kSize / 2);
  EXPECT_EQ(BytesOfNone(bytes, {1, 2}), 0u);
  EXPECT_GT(BytesOfNone(bytes, {2}), kSize / 4);
  bytes[7] = 0;
  while (bytes[7] == before[7] || bytes[7] == after[7]) ++bytes[7];
  EXPECT_EQ(BytesOfNone(bytes, {1, 2}), 1u);
}

TEST_F(KillMatrix, TriesRepeatedStepsThriceAndAThreadsModeNever) {
  const std::string mode = "cuThreadExchangeStreamCaptureMode";
  EXPECT_THAT(StepsToTry({"b", mode, "a", mode, mode, "a", mode, mode, "a", "a",
                          mode, "c"}),
              ::testing::ElementsAre(0, 2, 5, 9, 11));
}

TEST_F(KillMatrix, HasAtLeast60Points) {
  std::size_t steps = 0;
  for (const Case& which : AllCases()) {
    const std::size_t count = StepsToTry(CountSteps(which)).size();
    EXPECT_GT(count, 0u);
    steps += count;
    std::printf("%s: %zu steps\n", NameOf(which).c_str(), count);
  }
  std::printf("points of the kill matrix: %zu, before and after %zu steps\n",
              2 * steps, steps);
  EXPECT_GE(2 * steps, 60u);
}

}  // namespace
}  // namespace vmm::testing
