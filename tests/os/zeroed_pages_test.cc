#include "platform/os/zeroed_pages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "platform/os/large_pages.h"
#include "tests/support/must.h"

namespace vmm::platform {
namespace {

using testing::Must;

TEST(ZeroedPages, AreZeroAlsoWhereOthersWere) {
  constexpr std::size_t kSize = std::size_t{16} << 20;
  for (int round = 0; round < 4; ++round) {
    const ZeroedPages pages = Must(MapZeroedPages(kSize));
    ASSERT_GE(pages.get().size(), kSize);
    EXPECT_TRUE(std::all_of(pages.get().begin(), pages.get().end(),
                            [](std::uint8_t byte) { return byte == 0; }));
    std::fill(pages.get().begin(), pages.get().end(), std::uint8_t{0xff});
  }
}

TEST(ZeroedPages, CostNothingBeforeTheyAreTouched) {
  // 128 GB in all: clearing them would take a minute.
  constexpr std::size_t kSize = std::size_t{64} << 20;
  for (int round = 0; round < 2000; ++round) {
    const ZeroedPages pages = Must(MapZeroedPages(kSize));
    EXPECT_EQ(pages.get()[kSize - 1], 0);
  }
}

TEST(ZeroedPages, KeepWhatTheyHoldWhenTheyArePopulated) {
  constexpr std::size_t kSize = std::size_t{1} << 20;
  const ZeroedPages pages = Must(MapZeroedPages(kSize));
  pages.get()[5000] = 7;
  PopulatePages(pages.get());
  PopulatePages(pages.get().subspan(4999, 3));
  PopulatePages({});
  EXPECT_EQ(pages.get()[5000], 7);
  EXPECT_EQ(std::count(pages.get().begin(), pages.get().end(), 0),
            static_cast<std::ptrdiff_t>(pages.get().size()) - 1);
}

TEST(LargePages, WhatIsLargeLiesOnThemAndWhatIsSmallNeedNot) {
  std::vector<int, LargePageAllocator<int>> numbers(1000, 3);
  EXPECT_EQ(std::count(numbers.begin(), numbers.end(), 3), 1000);
  // Several, and a part of one.
  constexpr std::size_t kMany = 2 * kLargePage / sizeof(int) + 1;
  numbers.resize(kMany, 5);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(numbers.data()) % kLargePage, 0u);
  EXPECT_EQ(std::count(numbers.begin(), numbers.end(), 3), 1000);
  EXPECT_EQ(std::count(numbers.begin(), numbers.end(), 5),
            static_cast<std::ptrdiff_t>(kMany - 1000));
}

}  // namespace
}  // namespace vmm::platform
