// Which block an address lies in, and why it is none.
#include <memory>
#include <optional>
#include <string>

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

absl::Status Core::WhyNotFree(CUdeviceptr address) {
  platform::MutexLock lock(mutex_);
  const std::string what = absl::StrCat("0x", absl::Hex(address),
                                        " is no block to be freed or shared: ");
  if (book_.Find(address) != nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat(what, "it was freed already"));
  }
  if (RangeAround(address) == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, "it is not in this pool, whose segments hold ",
                     reserved_, " bytes"));
  }
  if (const Block* const block = BlockAround(address)) {
    return absl::InvalidArgumentError(absl::StrCat(
        what, "it points ", address - block->address,
        " bytes into the block at 0x", absl::Hex(block->address.load()),
        "; pass the address that Allocate() answered"));
  }
  return absl::FailedPreconditionError(absl::StrCat(
      what,
      "it lies in a segment of this pool, where no block is live now; it "
      "was freed already, or never allocated"));
}

}  // namespace vmm::pool
