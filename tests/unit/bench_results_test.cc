// What vmmshare-bench makes of two measurements of one target.
#include "bench/compare/results.h"
#include "gtest/gtest.h"

namespace bench::compare {
namespace {

Target AtLeast(std::optional<double> measured) {
  Target target;
  target.name = "speed";
  target.measured = measured;
  target.floor = 100;
  target.aim = 300;
  target.unit = "x";
  return target;
}

Target AtMost(std::optional<double> measured) {
  Target target = AtLeast(measured);
  target.at_least = false;
  return target;
}

TEST(WorseOf, IsTheSlowerSubscriberWhicheverThatIs) {
  EXPECT_EQ(WorseOf(AtLeast(400), AtLeast(90)).measured, 90);
  EXPECT_EQ(WorseOf(AtLeast(90), AtLeast(400)).measured, 90);
  EXPECT_EQ(WorseOf(AtMost(400), AtMost(90)).measured, 400);
  EXPECT_EQ(WorseOf(AtMost(90), AtMost(400)).measured, 400);
}

TEST(WorseOf, SaysWhichItIsAndWhatTheOtherHas) {
  EXPECT_EQ(WorseOf(AtLeast(400), AtLeast(90)).remark,
            "the late subscriber, the early one has 400.0x");
  EXPECT_EQ(WorseOf(AtLeast(90), AtLeast(400)).remark,
            "the early subscriber, the late one has 400.0x");
}

// One that meets the floor must not stand for one that nobody measured.
TEST(WorseOf, IsNotMeasuredWhereOneIsNot) {
  EXPECT_EQ(WorseOf(AtLeast(400), AtLeast(std::nullopt)).measured,
            std::nullopt);
  EXPECT_EQ(WorseOf(AtLeast(std::nullopt), AtLeast(400)).measured,
            std::nullopt);
}

TEST(Missed, CountsWhatIsUnderItsFloorOrNotMeasured) {
  EXPECT_EQ(Missed({AtLeast(100), AtMost(100), AtLeast(300)}), 0U);
  EXPECT_EQ(Missed({AtLeast(99), AtMost(101), AtLeast(std::nullopt)}), 3U);
  EXPECT_EQ(Missed({WorseOf(AtLeast(400), AtLeast(99))}), 1U);
  Target shown = AtLeast(1);
  shown.applies = false;
  EXPECT_EQ(Missed({shown}), 0U);
}

TEST(Targets, ATableSaysWhatIsMissed) {
  const Table table = ToTable({AtLeast(99), AtLeast(150), AtLeast(300)});
  ASSERT_EQ(table.rows.size(), 3U);
  EXPECT_EQ(table.rows[0].back(), "FAIL");
  EXPECT_EQ(table.rows[1].back(), "pass");
  EXPECT_EQ(table.rows[2].back(), "pass, aim met");
}

}  // namespace
}  // namespace bench::compare
