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

TEST(OffsetHeapDeathTest, ANumberOfNodesIsAPowerOfTwoFrom64On) {
  for (const std::uint32_t nodes : {0u, 1u, 32u, 63u, 65u, 96u, ~0u}) {
    EXPECT_DEATH(OffsetHeap(16 * kGranule, nodes), "2.6 to 2.31 nodes")
        << nodes;
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

TEST(OffsetHeapDeathTest, OnlyNeighboursAreJoined) {
  OffsetHeap heap(16 * kGranule);
  const std::uint32_t a = heap.Allocate(kGranule, kGranule)->node;
  const std::uint32_t b = heap.Allocate(kGranule, kGranule)->node;
  const std::uint32_t c = heap.Allocate(kGranule, kGranule)->node;
  const char* const words = "Join of what are no neighbours";
  EXPECT_DEATH(heap.Join(b, a), words);
  EXPECT_DEATH(heap.Join(a, c), words);
  EXPECT_DEATH(heap.Join(a, a), words);
  heap.Free(b);
  EXPECT_DEATH(heap.Join(a, b), words);
  EXPECT_DEATH(heap.Join(b, c), words);
  EXPECT_DEATH(heap.Join(c, OffsetHeap::kNoNode), words);
}

TEST(OffsetHeapDeathTest, ABlockIsSplitWithinIt) {
  OffsetHeap heap(16 * kGranule);
  const std::uint32_t node = heap.Allocate(4 * kGranule, kGranule)->node;
  const char* const words = "Split of a block where it does not end";
  for (const std::uint64_t size : {std::uint64_t{0}, kGranule + 1, 4 * kGranule,
                                   5 * kGranule, ~std::uint64_t{0}}) {
    EXPECT_DEATH(heap.Split(node, size), words) << size;
  }
  heap.Free(node);
  EXPECT_DEATH(heap.Split(node, kGranule), words);
}

TEST(OffsetHeapDeathTest, OnlyABlockAbsorbs) {
  OffsetHeap heap(16 * kGranule);
  const std::uint32_t node = heap.Allocate(4 * kGranule, kGranule)->node;
  heap.Free(node);
  EXPECT_DEATH(heap.Absorb(node), "Absorb by a node that is no live block");
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
