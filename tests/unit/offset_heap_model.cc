#include "tests/unit/offset_heap_model.h"

#include <algorithm>
#include <iterator>
#include <optional>

#include "absl/numeric/int128.h"
#include "absl/strings/str_cat.h"

namespace vmm::testing {
namespace {

using pool::OffsetHeap;
constexpr std::uint64_t kGranule = OffsetHeap::kGranule;

template <typename... Words>
absl::Status Wrong(const Words&... words) {
  return absl::InternalError(absl::StrCat(words...));
}

// How far apart the bounds of classes are around `bytes`: a granule below 32
// granules, then a 32nd of the power of two.
std::uint64_t StepAt(absl::uint128 bytes) {
  std::uint64_t step = kGranule;
  while (bytes >= absl::uint128{64} * step) step *= 2;
  return step;
}
std::uint64_t ClassFloor(std::uint64_t bytes) {
  return bytes / StepAt(bytes) * StepAt(bytes);
}
absl::uint128 ClassCeiling(absl::uint128 bytes) {
  const absl::uint128 step = StepAt(bytes);
  return (bytes + step - 1) / step * step;
}

// Whether the free range [from, to) holds `size` bytes at a multiple.
bool Holds(std::uint64_t from, std::uint64_t to, std::uint64_t size,
           std::uint64_t alignment) {
  const absl::uint128 first =
      (absl::uint128{from} + alignment - 1) / alignment * alignment;
  return first + size <= to;
}

}  // namespace

ModelledHeap::ModelledHeap(std::uint64_t size) : heap_(size) {
  free_[0] = size;
}

absl::Status ModelledHeap::Allocate(std::uint64_t size,
                                    std::uint64_t alignment) {
  const std::optional<OffsetHeap::Block> block =
      heap_.Allocate(size, alignment);
  absl::Status status;
  if (block.has_value()) {
    status = JudgeBlock(*block, (size - 1) / kGranule * kGranule + kGranule,
                        alignment);
  } else {
    ++refusals_;
    status = JudgeRefusal(size, alignment);
  }
  if (status.ok()) status = CheckSums();
  if (status.ok()) return status;
  return Wrong("Allocate(", size, ", ", alignment, ") of a heap of ",
               heap_.size(), ": ", status.message());
}

absl::Status ModelledHeap::JudgeBlock(const OffsetHeap::Block& block,
                                      std::uint64_t wanted,
                                      std::uint64_t alignment) {
  if (block.offset % alignment != 0) {
    return Wrong("the block at ", block.offset, " is not aligned");
  }
  if (block.size != wanted) {
    return Wrong("the block has ", block.size, " bytes, expected ", wanted);
  }
  auto above = free_.upper_bound(block.offset);
  const std::uint64_t end = block.offset + block.size;
  if (above == free_.begin() || std::prev(above)->second < end) {
    return Wrong("[", block.offset, ", ", end, ") was not free");
  }
  const auto [from, to] = *std::prev(above);
  free_.erase(std::prev(above));
  if (from < block.offset) free_[from] = block.offset;
  if (end < to) free_[end] = to;
  live_ += block.size;
  blocks_.push_back(block);
  return absl::OkStatus();
}

absl::Status ModelledHeap::JudgeRefusal(std::uint64_t size,
                                        std::uint64_t alignment) const {
  const absl::uint128 wanted =
      (absl::uint128{size} + kGranule - 1) / kGranule * kGranule;
  if (wanted > heap_.size()) return absl::OkStatus();
  const auto bytes = static_cast<std::uint64_t>(wanted);
  const absl::uint128 sure = ClassCeiling(wanted + alignment - kGranule);
  int candidates = 0;
  std::optional<std::uint64_t> fits;
  for (const auto& [from, to] : free_) {
    if (to - from >= sure) {
      return Wrong("refused, though every block fits in [", from, ", ", to,
                   ")");
    }
    if (to - from < ClassFloor(bytes)) continue;
    ++candidates;
    if (Holds(from, to, bytes, alignment)) fits = from;
  }
  if (fits.has_value() && candidates <= OffsetHeap::kMaxExamined) {
    return Wrong("refused, though it fits in the range at ", *fits, ", one of ",
                 candidates, " to be examined");
  }
  return absl::OkStatus();
}

absl::Status ModelledHeap::Free(std::size_t index) {
  const OffsetHeap::Block block = blocks_[index];
  blocks_[index] = blocks_.back();
  blocks_.pop_back();
  heap_.Free(block.node);
  live_ -= block.size;
  std::uint64_t from = block.offset;
  std::uint64_t to = block.offset + block.size;
  auto above = free_.lower_bound(from);
  if (above != free_.end() && above->first == to) {
    to = above->second;
    above = free_.erase(above);
  }
  if (above != free_.begin() && std::prev(above)->second == from) {
    std::prev(above)->second = to;
  } else {
    free_[from] = to;
  }
  const absl::Status status = CheckSums();
  if (status.ok()) return status;
  return Wrong("Free of [", block.offset, ", ", block.offset + block.size,
               "): ", status.message());
}

absl::Status ModelledHeap::CheckSums() const {
  if (heap_.live_bytes() != live_ ||
      heap_.free_bytes() != heap_.size() - live_) {
    return Wrong("says ", heap_.live_bytes(), " live and ", heap_.free_bytes(),
                 " free bytes, expected ", live_, " live of ", heap_.size());
  }
  if (heap_.live_blocks() != blocks_.size() ||
      heap_.empty() != blocks_.empty()) {
    return Wrong("says ", heap_.live_blocks(), " blocks, expected ",
                 blocks_.size());
  }
  return absl::OkStatus();
}

absl::Status ModelledHeap::CheckAll() const {
  absl::Status status = heap_.CheckInvariants();
  if (!status.ok()) return status;
  for (const OffsetHeap::Block& block : blocks_) {
    if (!heap_.is_live(block.node)) {
      return Wrong("the block at ", block.offset, " is not live");
    }
    const OffsetHeap::Block now = heap_.block(block.node);
    if (now.offset != block.offset || now.size != block.size) {
      return Wrong("the block at ", block.offset, " of ", block.size,
                   " is now at ", now.offset, " of ", now.size);
    }
  }
  std::uint64_t largest = 0;
  for (const auto& [from, to] : free_) largest = std::max(largest, to - from);
  const std::uint64_t said = heap_.largest_free();
  if (said > largest || ClassFloor(said) != ClassFloor(largest)) {
    return Wrong("says that ", said, " is free in one piece, it is ", largest);
  }
  return CheckSums();
}

}  // namespace vmm::testing
