// vmm/pool/internal/range.h: where memory comes that a block lacks, and how it
// goes again.
#include "vmm/pool/internal/range.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "tests/unit/heap_fault.h"
#include "tests/unit/heap_segments.h"
#include "vmm/pool/internal/block_book.h"

namespace vmm::pool {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kGranule = OffsetHeap::kGranule;
constexpr CUdeviceptr kBase = CUdeviceptr{1} << 40;

class RangeTest : public ::testing::Test {
 protected:
  ~RangeTest() override {
    EXPECT_EQ(range_.CheckInvariants(), absl::OkStatus());
  }

  // A block of the program's.
  Block* Take(std::uint64_t size) {
    const auto cut = range_.heap.Allocate(size, kGranule);
    if (!cut.has_value()) return nullptr;
    Block* const block = book_.Make(range_, cut->node);
    book_.Enter(block);
    return block;
  }
  void Free(Block* block) {
    book_.Leave(block);
    range_.heap.Free(block->node);
    book_.Discard(block);
  }
  void Expect(std::uint64_t size, const std::optional<Place>& wanted,
              std::uint64_t alignment = kGranule) {
    const std::optional<Place> found = range_.FindPlace(size, alignment);
    ASSERT_EQ(found.has_value(), wanted.has_value());
    if (!found.has_value()) return;
    EXPECT_EQ(found->begin, wanted->begin);
    EXPECT_EQ(found->end, wanted->begin + size);
    EXPECT_EQ(found->gap, wanted->gap);
    EXPECT_EQ(found->room, wanted->room);
    EXPECT_EQ(found->needed, wanted->needed);
  }
  void Remove(Segment& segment) {
    std::unique_ptr<Segment> removed;
    const std::optional<Claim> claim = range_.Remove(segment, &removed);
    ASSERT_TRUE(claim.has_value());
    EXPECT_EQ(removed.get(), &segment);
    EXPECT_FALSE(range_.is_vacant());
    range_.Vacate(*claim);
  }

  BlockBook book_;
  Range range_{1, kBase, 64 * kMiB};
};

TEST_F(RangeTest, AllIsAGapAtFirst) {
  EXPECT_TRUE(range_.is_vacant());
  EXPECT_EQ(range_.free(), 0);
  EXPECT_EQ(range_.taken(), 0);
  EXPECT_EQ(range_.addresses(), nullptr);
  Expect(3 * kMiB, Place{0, 0, 0, 64 * kMiB, 4 * kMiB});
  Expect(64 * kMiB, Place{0, 0, 0, 64 * kMiB, 64 * kMiB});
  Expect(64 * kMiB + kGranule, std::nullopt);
}

// Another thread frees it just then.
TEST_F(RangeTest, AGapIsNoPlaceForABlockThatWouldBeginBeyondIt) {
  FillGap(range_, 0, 2 * kMiB);
  Segment& second = FillGap(range_, 2 * kMiB, 2 * kMiB);
  FillGap(range_, 4 * kMiB, 20 * kMiB);
  ASSERT_NE(Take(2 * kMiB), nullptr);
  Remove(second);
  Expect(4 * kMiB, Place{8 * kMiB, 12 * kMiB, 24 * kMiB, 40 * kMiB, 2 * kMiB},
         8 * kMiB);
}

TEST_F(RangeTest, ABlockTakesWhatIsFreeBelowAndLacksTheRest) {
  FillGap(range_, 0, 4 * kMiB);
  Block* const low = Take(3 * kMiB);
  ASSERT_NE(low, nullptr);
  Expect(6 * kMiB, Place{3 * kMiB, 0, 4 * kMiB, 60 * kMiB, 6 * kMiB});
  Expect(61 * kMiB, Place{3 * kMiB, 0, 4 * kMiB, 60 * kMiB, 60 * kMiB});
  Expect(61 * kMiB + kGranule, std::nullopt);
  // A multiple of 8 MiB begins in the gap.
  Expect(kMiB, Place{8 * kMiB, 0, 4 * kMiB, 60 * kMiB, 6 * kMiB}, 8 * kMiB);
  // There is room: the heap may have too many ranges to find it.
  Expect(kMiB, Place{3 * kMiB, 0, 4 * kMiB, 60 * kMiB, 2 * kMiB});
}

TEST_F(RangeTest, ABlockReachesOverAGapIntoWhatIsFreeAboveIt) {
  FillGap(range_, 0, 4 * kMiB);
  Segment& middle = FillGap(range_, 4 * kMiB, 4 * kMiB);
  FillGap(range_, 8 * kMiB, 4 * kMiB);
  Remove(middle);
  // 4 MiB of the gap and not 6 at the end.
  Expect(10 * kMiB, Place{0, 0, 4 * kMiB, 4 * kMiB, 4 * kMiB});
  const Place place = *range_.FindPlace(10 * kMiB, kGranule);
  const Claim claim = *range_.Take(place, 4 * kMiB);
  // Nobody else has what is part of the block.
  EXPECT_EQ(Take(3 * kMiB), nullptr);
  EXPECT_EQ(range_.free(), 2 * kMiB);
  EXPECT_EQ(range_.taken(), 0);
  range_.Fill(claim, std::make_unique<Segment>(4 * kMiB));
  EXPECT_EQ(range_.free(), 12 * kMiB);
  ASSERT_NE(Take(10 * kMiB), nullptr);
}

TEST_F(RangeTest, WhatDoesNotComeLeavesAllAsItWas) {
  FillGap(range_, 0, 4 * kMiB);
  Segment& middle = FillGap(range_, 4 * kMiB, 8 * kMiB);
  FillGap(range_, 12 * kMiB, 4 * kMiB);
  Remove(middle);
  for (const std::uint64_t size : {10 * kMiB, 16 * kMiB, 18 * kMiB}) {
    const Place place = *range_.FindPlace(size, kGranule);
    range_.Vacate(*range_.Take(place, place.needed));
    EXPECT_EQ(range_.free(), 8 * kMiB);
    EXPECT_EQ(range_.CheckInvariants(), absl::OkStatus());
    Expect(size, place);
  }
}

// While it is claimed, and when it has come, others have what is not its part.
TEST_F(RangeTest, TheBlockForWhichASegmentComesHasItsPartsAndNoMore) {
  FillGap(range_, 0, 4 * kMiB);
  ASSERT_NE(Take(3 * kMiB), nullptr);
  Place place = *range_.FindPlace(2 * kMiB, kGranule);
  Claim claim = *range_.Take(place, 6 * kMiB);
  std::optional<std::uint32_t> node =
      range_.FillFor(place, claim, std::make_unique<Segment>(6 * kMiB));
  ASSERT_TRUE(node.has_value());
  EXPECT_EQ(range_.heap.block(*node).offset, 3 * kMiB);
  EXPECT_EQ(range_.heap.block(*node).size, 2 * kMiB);
  EXPECT_EQ(range_.free(), 5 * kMiB);
  range_.heap.Free(*node);
  // Of a multiple of 16 MiB: what lies below it is free.
  place = *range_.FindPlace(kMiB, 16 * kMiB);
  claim = *range_.Take(place, 8 * kMiB);
  node = range_.FillFor(place, claim, std::make_unique<Segment>(8 * kMiB));
  ASSERT_TRUE(node.has_value());
  EXPECT_EQ(range_.heap.block(*node).offset, 16 * kMiB);
  EXPECT_EQ(range_.heap.block(*node).size, kMiB);
  EXPECT_EQ(range_.free(), 14 * kMiB);
  range_.heap.Free(*node);
}

TEST_F(RangeTest, OfSeveralGapsTheOneThatLacksLeast) {
  FillGap(range_, 0, 4 * kMiB);
  Segment& gone = FillGap(range_, 4 * kMiB, 8 * kMiB);
  FillGap(range_, 12 * kMiB, 4 * kMiB);
  ASSERT_NE(Take(3 * kMiB), nullptr);
  Remove(gone);
  // 1 MiB is free below the first, 4 below the last.
  Expect(8 * kMiB, Place{12 * kMiB, 0, 16 * kMiB, 48 * kMiB, 4 * kMiB});
  ASSERT_NE(Take(4 * kMiB), nullptr);
  // As much each: the smaller one.
  Expect(4 * kMiB, Place{3 * kMiB, 0, 4 * kMiB, 8 * kMiB, 4 * kMiB});
}

TEST_F(RangeTest, ASegmentIsIdleWhenNothingOfItIsTaken) {
  Segment& first = FillGap(range_, 0, 4 * kMiB);
  Segment& second = FillGap(range_, 4 * kMiB, 6 * kMiB);
  Segment& third = FillGap(range_, 10 * kMiB, 2 * kMiB);
  EXPECT_EQ(range_.Idle(), (std::vector<Segment*>{&first, &second, &third}));
  Block* const block = Take(5 * kMiB);
  EXPECT_EQ(range_.Idle(), (std::vector<Segment*>{&third}));
  third.exporters = 1;
  EXPECT_TRUE(range_.Idle().empty());
  third.exporters = 0;
  Remove(third);
  EXPECT_EQ(range_.segments().size(), 2u);
  EXPECT_EQ(range_.Rooms()[0].free, 0);
  EXPECT_EQ(range_.Rooms()[1].free, 5 * kMiB);
  EXPECT_EQ(range_.Rooms()[1].largest, 5 * kMiB);
  Free(block);
  Remove(first);
  Remove(second);
  EXPECT_TRUE(range_.is_vacant());
  // One gap again.
  Expect(64 * kMiB, Place{0, 0, 0, 64 * kMiB, 64 * kMiB});
}

TEST_F(RangeTest, ABlockIsOfTheSegmentInWhichItBegins) {
  Segment& first = FillGap(range_, 0, 4 * kMiB);
  Segment& second = FillGap(range_, 4 * kMiB, 4 * kMiB);
  Block* const low = Take(3 * kMiB);
  Block* const across = Take(2 * kMiB);
  Block* const high = Take(kMiB);
  EXPECT_EQ(low->segment, &first);
  EXPECT_EQ(across->segment, &first);
  EXPECT_EQ(high->segment, &second);
  EXPECT_EQ(BlockBook::OffsetOf(*across), 3 * kMiB);
  EXPECT_EQ(BlockBook::OffsetOf(*high), kMiB);
  EXPECT_EQ(range_.StartAtOrBelow(kBase + 5 * kMiB - 1), kBase + 3 * kMiB);
  EXPECT_EQ(range_.StartAtOrBelow(kBase + 5 * kMiB), kBase + 5 * kMiB);
  EXPECT_EQ(range_.StartAtOrBelow(kBase + 60 * kMiB), kBase + 5 * kMiB);
  Free(low);
  EXPECT_EQ(range_.StartAtOrBelow(kBase + 2 * kMiB), std::nullopt);
}

TEST_F(RangeTest, FindsSegmentsAndGapsThatDisagree) {
  Segment& first = FillGap(range_, 0, 4 * kMiB);
  first.number = 7;
  first.offset = 2 * kMiB;
  first.domain = 1;
  ExpectFault(range_.CheckInvariants(), "segment 7 is not where it is");
  first.domain = 0;
  first.offset = 0;
  ASSERT_TRUE(range_.heap.Allocate(kGranule, kGranule).has_value());
}

}  // namespace
}  // namespace vmm::pool
