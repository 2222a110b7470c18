#include "platform/os/zeroed_pages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

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

}  // namespace
}  // namespace vmm::platform
