// vmm/pool/internal/offset_heap.h, case by case.
#include "vmm/pool/internal/offset_heap.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

namespace vmm::pool {
namespace {

constexpr std::uint64_t kGranule = OffsetHeap::kGranule;
constexpr std::uint64_t kMiB = 1 << 20;

static_assert(!std::is_copy_constructible_v<OffsetHeap>);
static_assert(std::is_nothrow_move_constructible_v<OffsetHeap>);

void ExpectWhole(const OffsetHeap& heap) {
  EXPECT_TRUE(heap.empty());
  EXPECT_EQ(heap.largest_free(), heap.size());
  EXPECT_EQ(heap.free_bytes(), heap.size());
  const absl::Status status = heap.CheckInvariants();
  EXPECT_TRUE(status.ok()) << status;
}

// Free ranges of one granule between blocks of one: `count` of each. Returns
// the blocks that are left.
std::vector<std::uint32_t> Comb(OffsetHeap& heap, std::uint64_t size,
                                int count) {
  std::vector<std::uint32_t> kept;
  std::vector<std::uint32_t> teeth;
  for (int i = 0; i < count; ++i) {
    teeth.push_back(heap.Allocate(size, kGranule)->node);
    kept.push_back(heap.Allocate(kGranule, kGranule)->node);
  }
  for (const std::uint32_t node : teeth) heap.Free(node);
  return kept;
}

// Free ranges of these sizes, in granules, freed in this order; all else is
// taken. Returns where they are.
std::vector<std::uint64_t> Carve(OffsetHeap& heap,
                                 const std::vector<std::uint64_t>& sizes) {
  std::vector<std::uint64_t> offsets;
  std::vector<std::uint32_t> nodes;
  for (const std::uint64_t size : sizes) {
    const auto block = heap.Allocate(size * kGranule, kGranule);
    offsets.push_back(block->offset);
    nodes.push_back(block->node);
    static_cast<void>(heap.Allocate(kGranule, kGranule));
  }
  static_cast<void>(heap.Allocate(heap.largest_free(), kGranule));
  for (const std::uint32_t node : nodes) heap.Free(node);
  return offsets;
}

TEST(OffsetHeap, GivesTheWholeHeapAsOneBlock) {
  OffsetHeap heap(3 * kMiB + kGranule);
  const auto block = heap.Allocate(heap.size(), kGranule);
  ASSERT_TRUE(block.has_value());
  EXPECT_EQ(block->offset, 0u);
  EXPECT_EQ(block->size, heap.size());
  EXPECT_EQ(heap.largest_free(), 0u);
  EXPECT_EQ(heap.free_bytes(), 0u);
  EXPECT_FALSE(heap.Allocate(1, kGranule).has_value());
  heap.Free(block->node);
  ExpectWhole(heap);
}

TEST(OffsetHeap, OfOneGranuleHoldsOneBlock) {
  OffsetHeap heap(kGranule);
  for (int i = 0; i < 100; ++i) {
    const auto block = heap.Allocate(1, kGranule);
    ASSERT_TRUE(block.has_value());
    EXPECT_EQ(block->size, kGranule);
    EXPECT_FALSE(heap.Allocate(1, kGranule).has_value());
    heap.Free(block->node);
  }
  ExpectWhole(heap);
}

TEST(OffsetHeap, RoundsSizesUpToAGranule) {
  OffsetHeap heap(kMiB);
  const std::pair<std::uint64_t, std::uint64_t> cases[] = {
      {1, 256}, {255, 256}, {256, 256}, {257, 512}, {65537, 65792}};
  std::uint64_t sum = 0;
  for (const auto& [asked, given] : cases) {
    EXPECT_EQ(heap.Allocate(asked, kGranule)->size, given);
    sum += given;
    EXPECT_EQ(heap.live_bytes(), sum);
  }
  EXPECT_EQ(heap.live_blocks(), std::size(cases));
}

TEST(OffsetHeap, RefusesMoreThanItHas) {
  OffsetHeap heap(kMiB);
  for (const std::uint64_t size :
       {kMiB + 1, OffsetHeap::kMaxSize, OffsetHeap::kMaxSize + 1,
        std::uint64_t{1} << 63, ~std::uint64_t{0}}) {
    EXPECT_FALSE(heap.Allocate(size, kGranule).has_value()) << size;
    EXPECT_FALSE(heap.Allocate(size, std::uint64_t{1} << 63)) << size;
  }
  ExpectWhole(heap);
}

TEST(OffsetHeap, IsExhaustedOnlyWhenAllIsTaken) {
  constexpr std::uint64_t kBlocks = 4099;
  OffsetHeap heap(kBlocks * 3 * kGranule);
  std::vector<bool> seen(kBlocks);
  std::vector<std::uint32_t> nodes;
  while (const auto block = heap.Allocate(3 * kGranule, kGranule)) {
    ASSERT_EQ(block->offset % (3 * kGranule), 0u);
    const std::uint64_t at = block->offset / (3 * kGranule);
    ASSERT_FALSE(seen[at]);
    seen[at] = true;
    nodes.push_back(block->node);
  }
  EXPECT_EQ(nodes.size(), kBlocks);
  EXPECT_EQ(heap.free_bytes(), 0u);
  for (const std::uint32_t node : nodes) heap.Free(node);
  ExpectWhole(heap);
}

TEST(OffsetHeap, JoinsThreeNeighboursFreedInAnyOrder) {
  for (const bool more_above : {false, true}) {
    std::array<int, 3> order = {0, 1, 2};
    do {
      OffsetHeap heap((more_above ? 7 : 6) * kGranule);
      std::array<std::uint32_t, 3> nodes{};
      for (std::uint64_t i = 0; i < 3; ++i) {
        const auto block = heap.Allocate((i + 1) * kGranule, kGranule);
        ASSERT_TRUE(block.has_value());
        nodes[i] = block->node;
      }
      for (const int i : order) {
        heap.Free(nodes[static_cast<std::size_t>(i)]);
        const absl::Status status = heap.CheckInvariants();
        ASSERT_TRUE(status.ok()) << status;
      }
      ExpectWhole(heap);
      EXPECT_TRUE(heap.Allocate(heap.size(), kGranule).has_value());
    } while (std::next_permutation(order.begin(), order.end()));
  }
}

TEST(OffsetHeap, AlignsAndGivesTheCutOffHeadToOthers) {
  OffsetHeap heap(8 * kMiB);
  const auto first = heap.Allocate(kGranule, kGranule);
  const auto aligned = heap.Allocate(2 * kMiB, 2 * kMiB);
  ASSERT_TRUE(aligned.has_value());
  EXPECT_EQ(aligned->offset, 2 * kMiB);
  EXPECT_EQ(heap.free_bytes(), 6 * kMiB - kGranule);
  const auto above = heap.Allocate(4 * kMiB, kGranule);
  ASSERT_TRUE(above.has_value());
  // Exactly what lies between the two.
  const auto head = heap.Allocate(2 * kMiB - kGranule, kGranule);
  ASSERT_TRUE(head.has_value());
  EXPECT_EQ(head->offset, kGranule);
  EXPECT_EQ(heap.free_bytes(), 0u);
  for (const auto& block : {first, aligned, above, head})
    heap.Free(block->node);
  ExpectWhole(heap);
}

TEST(OffsetHeap, FindsTheLastPlaceThatIsAligned) {
  OffsetHeap heap(4 * kMiB);
  const auto low = heap.Allocate(2 * kMiB, 2 * kMiB);
  // Free: [2 MiB, 4 MiB), aligned and of the very size.
  const auto high = heap.Allocate(2 * kMiB, 2 * kMiB);
  ASSERT_TRUE(low.has_value() && high.has_value());
  EXPECT_EQ(low->offset + high->offset, 2 * kMiB);
  EXPECT_EQ(heap.free_bytes(), 0u);
}

TEST(OffsetHeap, AlignsAtTheEndsOfAFreeRange) {
  OffsetHeap heap(4 * kMiB);
  const auto all = heap.Allocate(heap.size() - kGranule, kGranule);
  ASSERT_EQ(all->offset, 0u);
  // One granule is left, at an odd multiple of it.
  EXPECT_FALSE(heap.Allocate(kGranule, 2 * kGranule).has_value());
  const auto last = heap.Allocate(kGranule, kGranule);
  ASSERT_TRUE(last.has_value());
  EXPECT_EQ(last->offset, heap.size() - kGranule);
}

TEST(OffsetHeap, AHugeAlignmentIsOffsetZero) {
  OffsetHeap heap(kMiB);
  for (const std::uint64_t alignment :
       {2 * kMiB, std::uint64_t{1} << 30, std::uint64_t{1} << 63}) {
    const auto block = heap.Allocate(kGranule, alignment);
    ASSERT_TRUE(block.has_value()) << alignment;
    EXPECT_EQ(block->offset, 0u);
    EXPECT_FALSE(heap.Allocate(kGranule, alignment).has_value());
    heap.Free(block->node);
  }
  ExpectWhole(heap);
}

TEST(OffsetHeap, ReachesToTheLastGranuleOf32Bits) {
  OffsetHeap heap(OffsetHeap::kMaxSize);
  constexpr std::uint64_t kGiB = 1 << 30;
  const auto most = heap.Allocate(heap.size() - kGranule, kGranule);
  ASSERT_TRUE(most.has_value());
  const auto last = heap.Allocate(kGranule, kGranule);
  ASSERT_TRUE(last.has_value());
  EXPECT_EQ(last->offset, heap.size() - kGranule);
  heap.Free(most->node);
  const auto high = heap.Allocate(heap.size() / 2, 512 * kGiB);
  ASSERT_TRUE(high.has_value());
  EXPECT_EQ(high->offset % (512 * kGiB), 0u);
  const auto gib = heap.Allocate(kGiB, kGiB);
  ASSERT_TRUE(gib.has_value());
  EXPECT_EQ(gib->offset % kGiB, 0u);
  for (const auto& block : {gib, high, last}) heap.Free(block->node);
  ExpectWhole(heap);
  const auto all = heap.Allocate(OffsetHeap::kMaxSize, kGranule);
  ASSERT_TRUE(all.has_value());
  EXPECT_EQ(all->size, heap.size());
}

TEST(OffsetHeap, TakesTheClassThatFitsClosest) {
  OffsetHeap heap(64 * kMiB);
  const auto large = heap.Allocate(kMiB, kGranule);
  static_cast<void>(heap.Allocate(kGranule, kGranule));
  const auto small = heap.Allocate(64 * kGranule, kGranule);
  static_cast<void>(heap.Allocate(kGranule, kGranule));
  heap.Free(large->node);
  heap.Free(small->node);
  EXPECT_EQ(heap.Allocate(60 * kGranule, kGranule)->offset, small->offset);
}

// Below 64 granules a class has ranges of one size alone.
TEST(OffsetHeap, TakesASmallRangeOfTheVerySize) {
  for (std::uint64_t n = 1; n + 2 < 64; ++n) {
    OffsetHeap heap(kMiB);
    const auto at = Carve(heap, {n + 2, n + 1, n});
    EXPECT_EQ(heap.largest_free(), (n + 2) * kGranule);
    EXPECT_EQ(heap.Allocate(n * kGranule, kGranule)->offset, at[2]) << n;
    EXPECT_EQ(heap.Allocate((n + 1) * kGranule, kGranule)->offset, at[1]) << n;
    EXPECT_EQ(heap.Allocate((n + 2) * kGranule, kGranule)->offset, at[0]) << n;
    EXPECT_EQ(heap.largest_free(), 0u);
  }
}

TEST(OffsetHeap, TakesAnAlignedRangeOfTheVerySizeBeforeALargeOne) {
  OffsetHeap heap(kMiB);
  const auto at = Carve(heap, {20, 200});
  ASSERT_EQ(at[0], 0u);
  EXPECT_EQ(heap.Allocate(20 * kGranule, 16 * kGranule)->offset, 0u);
  EXPECT_GT(heap.Allocate(20 * kGranule, 16 * kGranule)->offset, at[1]);
}

// The least range that has room wherever it begins, behind more that have none
// than are looked at.
TEST(OffsetHeap, TakesWhatSurelyFitsBehindManyThatDoNot) {
  OffsetHeap heap(8 * kMiB);
  static_cast<void>(heap.Allocate(kGranule, kGranule));
  std::vector<std::uint32_t> narrow;
  for (int i = 0; i <= OffsetHeap::kMaxExamined; ++i) {
    narrow.push_back(heap.Allocate(20 * kGranule, kGranule)->node);
    static_cast<void>(heap.Allocate(12 * kGranule, kGranule));
  }
  const auto wide = heap.Allocate((20 + 16 - 1) * kGranule, kGranule);
  // Each begins one granule behind a multiple of 16.
  ASSERT_EQ(wide->offset % (16 * kGranule), kGranule);
  static_cast<void>(heap.Allocate(kGranule, kGranule));
  static_cast<void>(heap.Allocate(heap.largest_free(), kGranule));
  heap.Free(wide->node);
  for (const std::uint32_t node : narrow) heap.Free(node);
  const auto block = heap.Allocate(20 * kGranule, 16 * kGranule);
  ASSERT_TRUE(block.has_value());
  EXPECT_EQ(block->offset, wide->offset + 15 * kGranule);
}

// A range of the request's own class may be too small; the rest are looked at.
TEST(OffsetHeap, SearchesTheOwnClassBeforeItRefuses) {
  OffsetHeap heap(2 * kMiB);
  const auto wide = heap.Allocate(1031 * kGranule, kGranule);
  static_cast<void>(heap.Allocate(kGranule, kGranule));
  const auto narrow = heap.Allocate(1025 * kGranule, kGranule);
  static_cast<void>(heap.Allocate(kGranule, kGranule));
  static_cast<void>(heap.Allocate(heap.largest_free(), kGranule));
  heap.Free(wide->node);
  heap.Free(narrow->node);  // The newer one, looked at first.
  const auto block = heap.Allocate(1030 * kGranule, kGranule);
  ASSERT_TRUE(block.has_value());
  EXPECT_EQ(block->offset, wide->offset);
}

TEST(OffsetHeap, GivesUpAfterAsManyRangesAsItSays) {
  for (const int narrow :
       {OffsetHeap::kMaxExamined - 1, OffsetHeap::kMaxExamined}) {
    OffsetHeap heap(1 << 26);
    const auto wide = heap.Allocate(1031 * kGranule, kGranule);
    static_cast<void>(heap.Allocate(kGranule, kGranule));
    Comb(heap, 1025 * kGranule, narrow);
    static_cast<void>(heap.Allocate(heap.largest_free(), kGranule));
    // Whatever else is free is no candidate.
    ASSERT_LT(heap.largest_free(), 1030 * kGranule);
    OffsetHeap same = std::move(heap);
    same.Free(wide->node);
    // The newest first: put the wide one below the narrow ones.
    std::vector<std::uint32_t> taken;
    for (int i = 0; i < narrow + 1; ++i) {
      taken.push_back(same.Allocate(1025 * kGranule, kGranule)->node);
    }
    std::stable_partition(taken.begin(), taken.end(), [&](std::uint32_t node) {
      return same.block(node).offset == 0;
    });
    for (const std::uint32_t node : taken) same.Free(node);
    EXPECT_EQ(same.Allocate(1030 * kGranule, kGranule).has_value(),
              narrow < OffsetHeap::kMaxExamined);
  }
}

TEST(OffsetHeap, SaysWhichBlocksAreLive) {
  OffsetHeap heap(kMiB);
  for (std::uint32_t node = 0; node < 100; ++node) {
    EXPECT_FALSE(heap.is_live(node));
  }
  EXPECT_FALSE(heap.is_live(~std::uint32_t{0}));
  const auto block = heap.Allocate(1000, kGranule);
  EXPECT_TRUE(heap.is_live(block->node));
  EXPECT_EQ(heap.block(block->node).offset, block->offset);
  EXPECT_EQ(heap.block(block->node).size, 1024u);
  heap.Free(block->node);
  EXPECT_FALSE(heap.is_live(block->node));
}

TEST(OffsetHeap, UsesNodesAgain) {
  OffsetHeap heap(kMiB);
  std::uint32_t highest = 0;
  for (int i = 0; i < 10000; ++i) {
    const auto a = heap.Allocate(kGranule, 4 * kGranule);
    const auto b = heap.Allocate(kGranule, 4 * kGranule);
    highest = std::max({highest, a->node, b->node});
    heap.Free(a->node);
    heap.Free(b->node);
  }
  EXPECT_LT(highest, 64u);
  ExpectWhole(heap);
}

// Refused as its header says, and all goes on when a block is given back.
TEST(OffsetHeap, WithAllNodesInUseIsFull) {
  for (const std::uint32_t nodes : {64u, 128u}) {
    OffsetHeap heap(kMiB, nodes);
    std::vector<std::uint32_t> blocks;
    while (const auto block = heap.Allocate(2 * kGranule, kGranule)) {
      blocks.push_back(block->node);
    }
    // One free range beside them, and two nodes that a block may need.
    EXPECT_EQ(blocks.size(), nodes - 3);
    EXPECT_GT(heap.largest_free(), kMiB / 2);
    EXPECT_EQ(heap.Split(blocks.back(), kGranule), OffsetHeap::kNoNode);
    EXPECT_EQ(heap.block(blocks.back()).size, 2 * kGranule);
    EXPECT_EQ(heap.CheckInvariants(), absl::OkStatus());

    heap.Join(blocks[0], blocks[1]);
    EXPECT_NE(heap.Split(blocks[0], kGranule), OffsetHeap::kNoNode);
    EXPECT_FALSE(heap.Allocate(kGranule, kGranule).has_value());
    heap.Free(blocks.back());  // The free range is its neighbour.
    EXPECT_TRUE(heap.Allocate(kGranule, kGranule).has_value());
    EXPECT_FALSE(heap.Allocate(kGranule, kGranule).has_value());
    EXPECT_EQ(heap.CheckInvariants(), absl::OkStatus());
  }
}

TEST(OffsetHeap, KeepsItsBlocksWhenMoved) {
  OffsetHeap heap(kMiB);
  const auto block = heap.Allocate(kGranule, kGranule);
  OffsetHeap moved = std::move(heap);
  EXPECT_TRUE(moved.is_live(block->node));
  heap = std::move(moved);
  heap.Free(block->node);
  ExpectWhole(heap);
}

}  // namespace
}  // namespace vmm::pool
