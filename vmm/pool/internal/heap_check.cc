// What must hold of a Heap and of its ranges, for tests.
#include <map>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"
#include "vmm/pool/internal/heap.h"

namespace vmm::pool {

absl::Status Range::CheckInvariants() const {
  RETURN_IF_ERROR(heap.CheckInvariants());
  std::uint64_t mapped = 0;
  std::uint64_t end = 0;
  for (const auto& segment : segments_) {
    if (segment->offset < end || segment->end() > size() ||
        segment->range != this || segment->domain != domain) {
      return absl::InternalError(
          absl::StrCat("segment ", segment->number, " is not where it is"));
    }
    mapped += segment->size;
    end = segment->end();
  }
  std::uint64_t in_gaps = 0;
  for (const auto& [offset, gap] : gaps_) {
    const std::uint32_t node = gap.node;
    if (!heap.is_live(node) || heap.block(node).offset != offset ||
        BlockAt(node) != nullptr) {
      return absl::InternalError(
          absl::StrCat("the gap at ", offset, " is not what its heap says"));
    }
    in_gaps += heap.block(node).size;
  }
  if (mapped + gap_bytes_ != size() || in_gaps != gap_bytes_) {
    return absl::InternalError(absl::StrCat(
        "of a range of ", size(), " bytes ", mapped, " are in segments and ",
        in_gaps, " in gaps, counted ", gap_bytes_));
  }
  return absl::OkStatus();
}

absl::Status Heap::CheckInvariants() const {
  std::map<const Range*, std::uint64_t> bytes;
  std::uint64_t waiting = 0;
  for (const Block& block : book_.records()) {
    const BlockState state = block.state.load(std::memory_order_acquire);
    if (state == BlockState::kUnused || block.domain != domain_) continue;
    const CUdeviceptr address = block.address;
    const std::string what =
        absl::StrCat("the block at 0x", absl::Hex(address));
    const bool in_backlog = state == BlockState::kBacklog;
    if (in_backlog ? block.backlog == nullptr : book_.Find(address) != &block) {
      return absl::InternalError(
          absl::StrCat(what, in_backlog ? " is in no backlog"
                                        : " is not found by its address"));
    }
    const Range& range = *block.range;
    const std::uint64_t offset = address - range.base();
    if (!range.heap.is_live(block.node) ||
        range.heap.block(block.node).offset != offset ||
        range.heap.block(block.node).size != block.size ||
        range.BlockAt(block.node) != &block) {
      return absl::InternalError(
          absl::StrCat(what, " is not what its heap says"));
    }
    if (range.domain != domain_) {
      return absl::InternalError(
          absl::StrCat(what, " is of another domain than its range"));
    }
    if (block.segment != &range.SegmentAt(offset)) {
      return absl::InternalError(
          absl::StrCat(what, " begins in another segment than it says"));
    }
    bytes[&range] += block.size;
    if (in_backlog) waiting += block.size;
  }
  if (waiting != bytes_waiting_) {
    return absl::InternalError(
        absl::StrCat(waiting, " bytes wait, counted ", bytes_waiting_));
  }
  for (const auto& [stream, backlog] : backlogs_) {
    if (backlog->empty() == backlog->entry.empty()) {
      return absl::InternalError("a backlog is not where it should be asked");
    }
  }
  for (const std::unique_ptr<Range>& range : ranges_) {
    RETURN_IF_ERROR(range->CheckInvariants());
    if (bytes[range.get()] != range->taken()) {
      return absl::InternalError(absl::StrCat(
          "range ", range->number(), " has ", range->taken(),
          " bytes taken, of which its blocks know ", bytes[range.get()]));
    }
  }
  return absl::OkStatus();
}

}  // namespace vmm::pool
