// Which block an address lies in.
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "vmm/pool/internal/core.h"

namespace vmm::pool {

const Range* Core::RangeAround(CUdeviceptr inside) const {
  for (const std::unique_ptr<Heap>& heap : heaps_) {
    for (const std::unique_ptr<Range>& range : heap->ranges()) {
      if (range->Contains(inside)) return range.get();
    }
  }
  return nullptr;
}

const Block* Core::BlockAround(CUdeviceptr inside) const {
  const Range* const range = RangeAround(inside);
  if (range == nullptr) return nullptr;
  const std::optional<CUdeviceptr> start = range->StartAtOrBelow(inside);
  if (!start.has_value()) return nullptr;
  const Block* const block = book_.Find(*start);
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
