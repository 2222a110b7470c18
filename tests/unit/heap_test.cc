// vmm/pool/internal/heap.h: what it does without nodes, and CheckInvariants(),
// each fault made on purpose.
#include "vmm/pool/internal/heap.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "tests/unit/heap_fault.h"
#include "tests/unit/heap_segments.h"
#include "vmm/pool/internal/block_book.h"
#include "vmm/pool/internal/offset_heap.h"

namespace vmm::pool {
namespace {

constexpr std::uint64_t kGranule = OffsetHeap::kGranule;

// A heap of one segment in which one block is taken, at its base, and the one
// above it waits for a stream.
class HeapTest : public ::testing::Test {
 protected:
  static constexpr CUdeviceptr kBase = CUdeviceptr{1} << 40;

  static CUstream Stream(std::uintptr_t number) {
    return reinterpret_cast<CUstream>(number);
  }

  HeapTest() {
    AddSegment(heap_, kBase, 256 * kGranule);
    taken_ = Take(4 * kGranule, kGranule);
    waiting_ = Take(2 * kGranule, kGranule);
    Put(waiting_);
  }

  Block* Take(std::uint64_t size, std::uint64_t alignment) {
    Request request;
    request.size = size;
    request.alignment = alignment;
    request.stream = Stream(16);
    return heap_.Take(request);
  }
  void Put(Block* block) {
    block->freed_on = Stream(16);
    heap_.Put(block);
  }
  Range& range() { return *heap_.ranges().front(); }

  BlockBook book_;
  Heap heap_{0, book_};
  Block* taken_ = nullptr;
  Block* waiting_ = nullptr;
};

TEST_F(HeapTest, TheSmallestPieceServesWhetherItWaitsOrNot) {
  Block* const small = Take(kGranule, kGranule);
  Take(kGranule, kGranule);
  Block* const large = Take(8 * kGranule, kGranule);
  Take(kGranule, kGranule);
  const CUdeviceptr passed = small->address;
  const CUdeviceptr waits = large->address;
  small->freed_on = PassedStream();
  heap_.Put(small);
  Put(large);
  EXPECT_EQ(Take(kGranule, kGranule)->address, passed);
  EXPECT_EQ(Take(4 * kGranule, kGranule)->address, waits);
  EXPECT_EQ(heap_.CheckInvariants(), absl::OkStatus());
}

using HeapCheck = HeapTest;

TEST_F(HeapCheck, AHeapThatAgreesIsRight) {
  EXPECT_EQ(heap_.CheckInvariants(), absl::OkStatus());
  EXPECT_EQ(heap_.bytes_waiting(), 2 * kGranule);
}

TEST_F(HeapCheck, FindsABlockThatItsAddressDoesNotLeadTo) {
  book_.Leave(taken_);
  ExpectFault(heap_.CheckInvariants(),
              "the block at 0x10000000000 is not found by its address");
}

TEST_F(HeapCheck, FindsABlockThatWaitsNowhere) {
  waiting_->backlog = nullptr;
  ExpectFault(heap_.CheckInvariants(),
              "the block at 0x10000000400 is in no backlog");
}

TEST_F(HeapCheck, FindsABlockOfWhichItsRangeSaysSomethingElse) {
  const char* const words =
      "the block at 0x10000000000 is not what its heap says";
  taken_->size += kGranule;
  ExpectFault(heap_.CheckInvariants(), words);
  taken_->size -= kGranule;
  const std::uint32_t node = std::exchange(taken_->node, 63);
  ExpectFault(heap_.CheckInvariants(), words);
  taken_->node = node;
  range().SetBlock(node, waiting_);
  ExpectFault(heap_.CheckInvariants(), words);
  range().SetBlock(node, taken_);
  EXPECT_EQ(heap_.CheckInvariants(), absl::OkStatus());
  waiting_->address = kBase + 5 * kGranule;
  ExpectFault(heap_.CheckInvariants(),
              "the block at 0x10000000500 is not what its heap says");
}

TEST_F(HeapCheck, FindsARangeOfAnotherDomain) {
  range().domain = 1;
  ExpectFault(heap_.CheckInvariants(),
              "the block at 0x10000000000 is of another domain than its "
              "range");
}

TEST_F(HeapCheck, FindsBytesThatWaitUncounted) {
  taken_->state = BlockState::kBacklog;
  taken_->backlog = waiting_->backlog;
  ExpectFault(heap_.CheckInvariants(), "1536 bytes wait, counted 512");
}

TEST_F(HeapCheck, FindsABacklogThatNobodyWouldAsk) {
  heap_.Find(Stream(16))->entry.push_back(nullptr);
  ExpectFault(heap_.CheckInvariants(),
              "a backlog is not where it should be asked");
}

TEST_F(HeapCheck, FindsBytesThatNoBlockKnows) {
  ASSERT_TRUE(range().heap.Allocate(kGranule, kGranule).has_value());
  ExpectFault(heap_.CheckInvariants(),
              "range 1 has 1792 bytes taken, of which its blocks know 1536");
}

// As a stream's end tells it, while others go on.
TEST_F(HeapTest, AStreamIsForgottenOnceNothingWaitsThere) {
  heap_.Forget(Stream(32));  // It never freed anything.
  heap_.Forget(Stream(16));
  ASSERT_NE(heap_.Find(Stream(16)), nullptr);
  EXPECT_EQ(heap_.bytes_waiting(), 2 * kGranule);
  heap_.Pass(*heap_.Find(Stream(16)), ~std::uint64_t{0});
  EXPECT_EQ(heap_.bytes_waiting(), 0);
  heap_.Forget(Stream(16));
  EXPECT_EQ(heap_.Find(Stream(16)), nullptr);
  EXPECT_EQ(heap_.CheckInvariants(), absl::OkStatus());
}

// Whoever waits for a point of it may still do when the stream frees again.
TEST_F(HeapTest, WhatAForgottenStreamFreesIsOfALaterEpoch) {
  const std::uint64_t epoch = heap_.Close(Stream(16));
  heap_.Pass(*heap_.Find(Stream(16)), epoch);
  heap_.Forget(Stream(16));
  const std::uint64_t second = heap_.Close(Stream(16));
  Put(taken_);
  for (const std::uint64_t passed : {epoch, second}) {
    heap_.Pass(*heap_.Find(Stream(16)), passed);
    EXPECT_EQ(heap_.bytes_waiting(), 4 * kGranule) << passed;
  }
  heap_.Pass(*heap_.Find(Stream(16)), heap_.Close(Stream(16)));
  EXPECT_EQ(heap_.bytes_waiting(), 0);
  EXPECT_EQ(heap_.CheckInvariants(), absl::OkStatus());
}

// As a block that a peer gives back while its stream is released.
TEST_F(HeapTest, ABlockThatComesLatePassesWithItsEpoch) {
  // Each is too large for what waits.
  Block* const before = Take(5 * kGranule, kGranule);
  Take(4 * kGranule, kGranule);
  Block* const after = Take(3 * kGranule, kGranule);
  Take(4 * kGranule, kGranule);
  const std::uint64_t epoch = heap_.Close(Stream(16));
  Put(after);
  before->freed_on = taken_->freed_on = Stream(16);
  heap_.Put(before, epoch);
  heap_.Put(taken_, epoch);  // One with what is above it, which waits.
  EXPECT_EQ(heap_.bytes_waiting(), (4 + 2 + 5 + 3) * kGranule);
  heap_.Pass(*heap_.Find(Stream(16)), epoch);
  EXPECT_EQ(heap_.bytes_waiting(), 3 * kGranule);
  EXPECT_EQ(heap_.CheckInvariants(), absl::OkStatus());
  heap_.Pass(*heap_.Find(Stream(16)), heap_.Close(Stream(16)));
  EXPECT_EQ(heap_.bytes_waiting(), 0);
}

// What a stream freed at the end of its memory is a part of the block for which
// more comes; another stream's is not.
TEST_F(HeapTest, WhatAStreamFreedIsPartOfTheBlockForWhichMemoryComes) {
  constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
  Range& range = heap_.Add(
      std::make_unique<Range>(heap_.NextRange(), 2 * kBase, 64 * kMiB));
  FillGap(range, 0, 4 * kMiB);
  std::vector<Block*> parts;
  for (int i = 0; i < 4; ++i) {
    parts.push_back(Take(kMiB, kMiB));
    ASSERT_NE(parts.back(), nullptr);
  }
  Put(parts[1]);  // Passed below.
  heap_.Pass(*heap_.Find(Stream(16)), ~std::uint64_t{0});
  Put(parts[2]);
  parts[3]->freed_on = PassedStream();
  heap_.Put(parts[3]);
  const Backlog* const own = heap_.Find(Stream(16));
  EXPECT_EQ(range.FindPlace(9 * kMiB, kGranule)->begin, 3 * kMiB);
  const Place place = *range.FindPlace(9 * kMiB, kGranule, own);
  EXPECT_EQ(place.begin, kMiB);
  EXPECT_EQ(place.own, parts[2]);
  EXPECT_EQ(place.needed, 6 * kMiB);
  Claim claim = *heap_.Take(range, place, 6 * kMiB);
  EXPECT_EQ(heap_.CheckInvariants(), absl::OkStatus());
  EXPECT_EQ(heap_.bytes_waiting(), 0u);
  EXPECT_EQ(range.free(), 0u);
  heap_.Vacate(range, place, claim);
  EXPECT_EQ(heap_.CheckInvariants(), absl::OkStatus());
  EXPECT_EQ(heap_.bytes_waiting(), kMiB);
  EXPECT_EQ(range.free(), 2 * kMiB);
  claim = *heap_.Take(range, place, 6 * kMiB);
  Block* const block =
      heap_.FillFor(range, place, claim, std::make_unique<Segment>(6 * kMiB));
  ASSERT_NE(block, nullptr);
  EXPECT_EQ(block->address, 2 * kBase + kMiB);
  EXPECT_EQ(block->size, 9 * kMiB);
  EXPECT_EQ(range.taken(), 10 * kMiB);
  EXPECT_EQ(range.free(), 0u);
  EXPECT_EQ(heap_.CheckInvariants(), absl::OkStatus());
}

// A block that waits is cut where the request fits; that takes a node.
TEST_F(HeapTest, WithoutNodesABlockThatWaitsIsTakenWholeAlone) {
  Put(taken_);
  heap_.Pass(*heap_.Find(Stream(16)), ~std::uint64_t{0});
  range().heap = OffsetHeap(range().size(), 64);
  std::vector<Block*> blocks;
  while (Block* const block = Take(2 * kGranule, kGranule)) {
    blocks.push_back(block);
  }
  ASSERT_EQ(blocks.size(), 61u);
  Put(blocks.front());
  EXPECT_EQ(Take(kGranule, kGranule), nullptr);
  EXPECT_EQ(Take(kGranule, 2 * kGranule), nullptr);  // Its lower half.
  EXPECT_EQ(heap_.bytes_waiting(), 2 * kGranule);
  EXPECT_EQ(heap_.CheckInvariants(), absl::OkStatus());
  EXPECT_EQ(Take(2 * kGranule, kGranule), blocks.front());
  EXPECT_EQ(heap_.bytes_waiting(), 0);
  EXPECT_EQ(heap_.CheckInvariants(), absl::OkStatus());
}

}  // namespace
}  // namespace vmm::pool
