// Block: what a pool knows of one piece of its memory; internal to vmm/.
#ifndef VMMSHARE_VMM_POOL_INTERNAL_BLOCK_H_
#define VMMSHARE_VMM_POOL_INTERNAL_BLOCK_H_

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <thread>

namespace vmm::pool {

class Backlog;
class Range;
struct Segment;

enum class BlockState : std::uint32_t {
  kUnused,   // Not taken from its range: the record waits for its next use.
  kLive,     // The program's.
  kSharing,  // Live, and a ticket is being made of it.
  kFree,     // Freed by the program, and kept as it is for the next request.
  kBacklog,  // Freed, and perhaps one of several: in the backlog of a stream.
};

// Cache lines of their own, so that threads that use different blocks do not
// slow each other down. Records are never deleted while their pool lives:
// whoever read a stale pointer finds a record, and its state says the rest.
struct alignas(128) Block {
  static constexpr std::uint32_t kNoSlot = ~std::uint32_t{0};

  std::atomic<BlockState> state = BlockState::kUnused;
  std::uint32_t domain = 0;
  // Set while nobody can look the block up; read by whoever finds a record that
  // is used again at that moment.
  std::atomic<CUdeviceptr> address = 0;
  std::uint64_t size = 0;       // Bytes taken from the range.
  std::uint64_t requested = 0;  // Bytes that the program asked for.
  Block* next = nullptr;        // In the list that holds it.
  Segment* segment = nullptr;   // In which it begins.
  CUstream freed_on = nullptr;
  std::uint32_t node = 0;                     // Of the range's heap.
  std::atomic<std::uint32_t> slot = kNoSlot;  // Of the domain's share table.

  Range* range = nullptr;
  // While it is in a backlog; the list of its size is linked by next.
  Backlog* backlog = nullptr;
  Block* prev = nullptr;
  Block* older = nullptr;
  Block* newer = nullptr;
  // There, from 1. Of one that peers hold: that which a ReleaseStream() closed
  // that began since it was freed; 0 is none.
  std::uint64_t epoch = 0;

  // A Free() of the block waits until Unclaim(); it is the program's error, but
  // must not leave a ticket to a block that somebody else gets. One that is
  // claimed is claimed no further by a second call, and let go of by the first
  // Unclaim(). False when it is not live. For one thread at a time.
  bool Claim() {
    BlockState expected = BlockState::kLive;
    return state.compare_exchange_strong(expected, BlockState::kSharing,
                                         std::memory_order_acq_rel) ||
           expected == BlockState::kSharing;
  }
  void Unclaim() {
    if (state.load(std::memory_order_relaxed) == BlockState::kSharing) {
      state.store(BlockState::kLive, std::memory_order_release);
    }
  }

  // Takes the block out of the program's hands. False when it is not live.
  bool LeaveLive() {
    for (;;) {
      BlockState expected = BlockState::kLive;
      if (state.compare_exchange_weak(expected, BlockState::kFree,
                                      std::memory_order_acq_rel)) {
        return true;
      }
      if (expected == BlockState::kSharing) {
        std::this_thread::yield();  // Another thread's Export(), for a moment.
      } else if (expected != BlockState::kLive) {
        return false;
      }
    }
  }
};

// A stack of blocks, linked through them.
class BlockList {
 public:
  bool empty() const { return head_ == nullptr; }
  std::uint32_t size() const { return size_; }
  // Of all of them. O(blocks).
  std::uint64_t bytes() const {
    std::uint64_t bytes = 0;
    for (const Block* one = head_; one != nullptr; one = one->next) {
      bytes += one->size;
    }
    return bytes;
  }
  // The one that Pop() returns, and by Block::next the others; null when empty.
  Block* front() const { return head_; }
  void Push(Block* block) {
    block->next = head_;
    head_ = block;
    ++size_;
  }
  // REQUIRES: !empty().
  Block* Pop() {
    Block* block = head_;
    head_ = block->next;
    --size_;
    return block;
  }

 private:
  Block* head_ = nullptr;
  std::uint32_t size_ = 0;
};

}  // namespace vmm::pool

#endif  // VMMSHARE_VMM_POOL_INTERNAL_BLOCK_H_
