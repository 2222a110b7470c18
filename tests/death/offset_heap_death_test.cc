// Misuse of the pool's offset heap ends the program.
#include <gtest/gtest.h>

#include <cstdint>

#include "vmm/pool/internal/offset_heap.h"

namespace vmm::pool {
namespace {

constexpr std::uint64_t kGranule = OffsetHeap::kGranule;

TEST(OffsetHeapDeathTest, ASizeIsAMultipleOfAGranuleWithinBounds) {
  for (const std::uint64_t size :
       {std::uint64_t{0}, std::uint64_t{1}, kGranule + 1,
        OffsetHeap::kMaxSize + 1, OffsetHeap::kMaxSize + kGranule}) {
    EXPECT_DEATH(OffsetHeap{size}, "is a multiple of 256 bytes") << size;
  }
}

TEST(OffsetHeapDeathTest, ABlockIsNotFreedTwice) {
  EXPECT_DEATH(
      {
        OffsetHeap heap(16 * kGranule);
        const auto block = heap.Allocate(kGranule, kGranule);
        heap.Free(block->node);
        heap.Free(block->node);
      },
      "Free of a node that is no live block");
  EXPECT_DEATH(
      {
        OffsetHeap heap(16 * kGranule);
        const auto below = heap.Allocate(kGranule, kGranule);
        const auto above = heap.Allocate(kGranule, kGranule);
        heap.Free(below->node);
        heap.Free(above->node);
        heap.Free(above->node);
      },
      "Free of a node that is no live block");
}

TEST(OffsetHeapDeathTest, OnlyABlockIsFreed) {
  for (const std::uint32_t node : {0u, 1u, 2u, 63u, 64u, ~0u}) {
    EXPECT_DEATH(OffsetHeap(16 * kGranule).Free(node),
                 "Free of a node that is no live block");
    EXPECT_DEATH(OffsetHeap(16 * kGranule).block(node),
                 "of a node that is no live block");
  }
}

TEST(OffsetHeapDeathTest, ABlockHasASizeAndAnAlignment) {
  OffsetHeap heap(16 * kGranule);
  EXPECT_DEATH(heap.Allocate(0, kGranule), "Allocate of 0 bytes");
  for (const std::uint64_t alignment :
       {std::uint64_t{0}, std::uint64_t{1}, kGranule / 2, kGranule + 1,
        3 * kGranule}) {
    EXPECT_DEATH(heap.Allocate(1, alignment), "a power of two, at least 256");
  }
}

}  // namespace
}  // namespace vmm::pool
