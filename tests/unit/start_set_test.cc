// StartSet against std::set.
#include "vmm/pool/internal/start_set.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <random>
#include <set>

namespace vmm::pool {
namespace {

std::optional<std::uint64_t> AtOrBelow(const std::set<std::uint64_t>& model,
                                       std::uint64_t number) {
  const auto after = model.upper_bound(number);
  if (after == model.begin()) return std::nullopt;
  return *std::prev(after);
}

TEST(StartSetTest, FindsWhatAnOrderedSetFinds) {
  std::mt19937_64 random(11);
  for (const std::uint64_t limit : {1, 2, 63, 64, 65, 4096, 4097, 300'000}) {
    StartSet set(limit);
    std::set<std::uint64_t> model;
    for (int i = 0; i < 30'000; ++i) {
      // Few at first and at last, many in between.
      const bool grow = random() % 30'000 > static_cast<unsigned>(i);
      const std::uint64_t number = random() % limit;
      if (grow) {
        set.Insert(number);
        model.insert(number);
      } else if (const auto near = AtOrBelow(model, number)) {
        set.Erase(*near);
        model.erase(*near);
      }
      const std::uint64_t asked = random() % limit;
      ASSERT_EQ(set.AtOrBelow(asked), AtOrBelow(model, asked))
          << asked << " below " << limit << " after " << i;
    }
    ASSERT_EQ(set.AtOrBelow(limit - 1), AtOrBelow(model, limit - 1));
  }
}

TEST(StartSetTest, FindsAStartFarBelow) {
  StartSet set(std::uint64_t{1} << 22);  // Of a segment of 1 GiB.
  set.Insert(0);
  EXPECT_EQ(set.AtOrBelow((1 << 22) - 1), 0u);
  set.Erase(0);
  EXPECT_EQ(set.AtOrBelow((1 << 22) - 1), std::nullopt);
}

}  // namespace
}  // namespace vmm::pool
