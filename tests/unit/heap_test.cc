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
    heap_.Add(std::make_unique<Segment>(7, kBase, 256 * kGranule));
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
  Segment& segment() { return *heap_.segments().front(); }

  BlockBook book_;
  Heap heap_{0, book_};
  Block* taken_ = nullptr;
  Block* waiting_ = nullptr;
};

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

TEST_F(HeapCheck, FindsABlockOfWhichItsSegmentSaysSomethingElse) {
  const char* const words =
      "the block at 0x10000000000 is not what its heap says";
  taken_->size += kGranule;
  ExpectFault(heap_.CheckInvariants(), words);
  taken_->size -= kGranule;
  const std::uint32_t node = std::exchange(taken_->node, 63);
  ExpectFault(heap_.CheckInvariants(), words);
  taken_->node = node;
  segment().SetBlock(node, waiting_);
  ExpectFault(heap_.CheckInvariants(), words);
  segment().SetBlock(node, taken_);
  EXPECT_EQ(heap_.CheckInvariants(), absl::OkStatus());
  waiting_->address = kBase + 5 * kGranule;
  ExpectFault(heap_.CheckInvariants(),
              "the block at 0x10000000500 is not what its heap says");
}

TEST_F(HeapCheck, FindsASegmentOfAnotherDomain) {
  segment().domain = 1;
  ExpectFault(heap_.CheckInvariants(),
              "the block at 0x10000000000 is of another domain than its "
              "segment");
}

TEST_F(HeapCheck, FindsBytesThatWaitUncounted) {
  taken_->state = BlockState::kBacklog;
  taken_->backlog = waiting_->backlog;
  ExpectFault(heap_.CheckInvariants(), "1536 bytes wait, counted 512");
}

TEST_F(HeapCheck, FindsABacklogThatNobodyWouldAsk) {
  heap_.Find(Stream(16))->place.reset();
  ExpectFault(heap_.CheckInvariants(),
              "a backlog is not where it should be asked");
}

TEST_F(HeapCheck, FindsBytesThatNoBlockKnows) {
  ASSERT_TRUE(segment().heap.Allocate(kGranule, kGranule).has_value());
  ExpectFault(heap_.CheckInvariants(),
              "segment 7 has 1792 bytes taken, of which its blocks know 1536");
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

// A block that waits is cut where the request fits; that takes a node.
TEST_F(HeapTest, WithoutNodesABlockThatWaitsIsTakenWholeAlone) {
  Put(taken_);
  heap_.Pass(*heap_.Find(Stream(16)), ~std::uint64_t{0});
  segment().heap = OffsetHeap(segment().size(), 64);
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
