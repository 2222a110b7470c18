// Which block an address lies in.
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "vmm/pool/internal/core.h"

namespace vmm::pool {

const Segment* Core::SegmentAround(CUdeviceptr inside) const {
  for (const std::unique_ptr<Heap>& heap : heaps_) {
    for (const std::unique_ptr<Segment>& segment : heap->segments()) {
      if (segment->Contains(inside)) return segment.get();
    }
  }
  return nullptr;
}

const Block* Core::BlockAround(CUdeviceptr inside) const {
  const Segment* const segment = SegmentAround(inside);
  if (segment == nullptr) return nullptr;
  const auto start = segment->starts.AtOrBelow((inside - segment->base()) /
                                               OffsetHeap::kGranule);
  if (!start.has_value()) return nullptr;
  const Block* const block =
      book_.Find(segment->base() + *start * OffsetHeap::kGranule);
  if (block == nullptr || inside - block->address >= block->size) {
    return nullptr;
  }
  const BlockState state = block->state.load(std::memory_order_acquire);
  const bool is_live =
      state == BlockState::kLive || state == BlockState::kSharing;
  return is_live ? block : nullptr;
}

std::optional<PoolBlock> Core::Find(CUdeviceptr inside) {
  const platform::MutexLock lock(mutex_);
  const Block* const block = BlockAround(inside);
  if (block == nullptr || inside - block->address >= block->requested) {
    return std::nullopt;
  }
  return PoolBlock{block->address, block->requested};
}

}  // namespace vmm::pool
