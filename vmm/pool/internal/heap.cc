#include "vmm/pool/internal/heap.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/check.h"

namespace vmm::pool {

void Heap::Add(std::unique_ptr<Segment> segment) {
  segment->domain = domain_;
  segments_.push_back(std::move(segment));
}

std::unique_ptr<Segment> Heap::Remove(const Segment& segment) {
  platform::Check(segment.heap.empty(), "a segment goes that is in use");
  const auto found = std::find_if(
      segments_.begin(), segments_.end(),
      [&segment](const auto& one) { return one.get() == &segment; });
  platform::Check(found != segments_.end(), "no such segment of a pool");
  std::unique_ptr<Segment> removed = std::move(*found);
  segments_.erase(found);
  return removed;
}

void Heap::Clear() {
  filled_.clear();
  backlogs_.clear();
  segments_.clear();
  bytes_waiting_ = 0;
}

Block* Heap::Take(const Request& request, bool any) {
  if (Backlog* const own = Find(request.stream); own != nullptr) {
    if (Block* const block = TakeFrom(*own, request, any)) return block;
  }
  for (const std::unique_ptr<Segment>& segment : segments_) {
    if (segment->heap.free_bytes() < request.size ||
        segment->alignment() < request.alignment ||
        (request.size < segment->smallest && !any)) {
      continue;
    }
    const std::optional<OffsetHeap::Block> cut =
        segment->heap.Allocate(request.size, request.alignment);
    if (!cut.has_value()) continue;
    Block* const block = book_.Make(*segment, cut->node);
    book_.Enter(block);
    return block;
  }
  return nullptr;
}

Block* Heap::TakeWhole(Segment& segment) {
  platform::Check(segment.heap.empty(), "a segment is taken that is in use");
  const std::optional<OffsetHeap::Block> cut =
      segment.heap.Allocate(segment.size(), OffsetHeap::kGranule);
  platform::Check(cut.has_value(), "an empty segment has no room");
  Block* const block = book_.Make(segment, cut->node);
  book_.Enter(block);
  return block;
}

Block* Heap::TakeFrom(Backlog& backlog, const Request& request, bool any) {
  Block* const found = backlog.Find(request.size, request.alignment, any);
  return found == nullptr ? nullptr : CutFrom(backlog, found, request);
}

Block* Heap::CutFrom(Backlog& backlog, Block* block, const Request& request) {
  Segment& segment = *block->segment;
  const std::uint64_t end =
      HighestFit(block->address, block->size, request.size, request.alignment);
  if (end < block->size) {
    const std::uint32_t above = segment.heap.Split(block->node, end);
    if (above == OffsetHeap::kNoNode) return nullptr;
    bytes_waiting_ -= block->size - end;
    backlog.Shrink(block, end);
    Block* const rest = book_.Make(segment, above);
    rest->state.store(BlockState::kBacklog, std::memory_order_release);
    backlog.AddBeside(rest, block);
    bytes_waiting_ += rest->size;
  }
  Block* taken = block;
  if (end > request.size) {
    const std::uint32_t node =
        segment.heap.Split(block->node, end - request.size);
    if (node == OffsetHeap::kNoNode) return nullptr;
    bytes_waiting_ -= request.size;
    backlog.Shrink(block, end - request.size);
    taken = book_.Make(segment, node);
  } else {
    RemoveFrom(backlog, block);
  }
  book_.Enter(taken);
  return taken;
}

void Heap::AddTo(Backlog& backlog, Block* block) {
  bytes_waiting_ += block->size;
  backlog.Add(block);
}

void Heap::RemoveFrom(Backlog& backlog, Block* block) {
  bytes_waiting_ -= block->size;
  backlog.Remove(block);
  NoteFill(backlog);
}

void Heap::NoteFill(Backlog& backlog) {
  if (backlog.empty() == !backlog.place.has_value()) return;
  if (backlog.empty()) {
    filled_.erase(*backlog.place);
    backlog.place.reset();
  } else {
    backlog.place = filled_.insert(filled_.end(), &backlog);
  }
}

void Heap::Put(Block* block) {
  Segment& segment = *block->segment;
  book_.Leave(block);
  if (block->freed_on == PassedStream()) {
    segment.heap.Free(block->node);
    book_.Discard(block);
    return;
  }
  Backlog& backlog = BacklogOf(block->freed_on);
  block->state.store(BlockState::kBacklog, std::memory_order_release);
  const std::uint32_t below = segment.heap.Below(block->node);
  if (Block* const lower = segment.BlockAt(below);
      below != OffsetHeap::kNoNode && lower->backlog == &backlog) {
    bytes_waiting_ -= lower->size;
    backlog.Remove(lower);
    segment.heap.Join(lower->node, block->node);
    lower->size += block->size;
    book_.Discard(std::exchange(block, lower));
  }
  const std::uint32_t above = segment.heap.Above(block->node);
  if (Block* const upper = segment.BlockAt(above);
      above != OffsetHeap::kNoNode && upper->backlog == &backlog) {
    bytes_waiting_ -= upper->size;
    backlog.Remove(upper);
    segment.heap.Join(block->node, upper->node);
    block->size += upper->size;
    book_.Discard(upper);
  }
  AddTo(backlog, block);
  NoteFill(backlog);
}

Backlog* Heap::Find(CUstream stream) {
  const auto found = backlogs_.find(stream);
  return found == backlogs_.end() ? nullptr : found->second.get();
}

Backlog& Heap::BacklogOf(CUstream stream) {
  std::unique_ptr<Backlog>& backlog = backlogs_[stream];
  if (backlog == nullptr) backlog = std::make_unique<Backlog>(stream);
  return *backlog;
}

std::vector<Backlog*> Heap::NextBacklogs(std::size_t most) {
  std::vector<Backlog*> next;
  next.reserve(std::min(most, filled_.size()));
  for (std::size_t i = std::min(most, filled_.size()); i > 0; --i) {
    next.push_back(filled_.front());
    filled_.splice(filled_.end(), filled_, filled_.begin());
  }
  return next;
}

void Heap::Pass(Backlog& backlog, std::uint64_t epoch) {
  while (Block* const block = backlog.OldestUpTo(epoch)) {
    RemoveFrom(backlog, block);
    block->segment->heap.Free(block->node);
    book_.Discard(block);
  }
}

Block* Heap::TakeAfterWait(Backlog& backlog, std::uint64_t epoch,
                           const Request& request) {
  Block* const found =
      backlog.Find(request.size, request.alignment, /*any=*/true);
  if (found == nullptr || found->epoch > epoch) return nullptr;
  return CutFrom(backlog, found, request);
}

void Heap::MoveAfterWait(Backlog& backlog, std::uint64_t epoch,
                         CUstream stream) {
  while (Block* const block = backlog.OldestUpTo(epoch)) {
    RemoveFrom(backlog, block);
    book_.Enter(block);
    block->freed_on = stream;
    Put(block);
  }
}

void Heap::Absorb(CUstream stream) {
  Backlog* const backlog = Find(stream);
  if (backlog == nullptr) return;
  std::vector<Block*> blocks;
  while (Block* const block = backlog->OldestUpTo(~std::uint64_t{0})) {
    RemoveFrom(*backlog, block);
    blocks.push_back(block);
  }
  for (Block* block : blocks) {
    const OffsetHeap::Block grown = block->segment->heap.Absorb(block->node);
    block->address.store(block->segment->base() + grown.offset,
                         std::memory_order_relaxed);
    block->size = grown.size;
    book_.Enter(block);
    block->freed_on = stream;
    Put(block);
  }
}

void Heap::Forget(CUstream stream) {
  const auto found = backlogs_.find(stream);
  if (found == backlogs_.end()) return;
  if (!found->second->empty() || found->second->is_asked) return;
  backlogs_.erase(found);
}

absl::Status Heap::CheckInvariants() const {
  std::map<const Segment*, std::uint64_t> bytes;
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
    const OffsetHeap& heap = block.segment->heap;
    if (!heap.is_live(block.node) ||
        heap.block(block.node).offset != address - block.segment->base() ||
        heap.block(block.node).size != block.size ||
        block.segment->BlockAt(block.node) != &block) {
      return absl::InternalError(
          absl::StrCat(what, " is not what its heap says"));
    }
    if (block.segment->domain != domain_) {
      return absl::InternalError(
          absl::StrCat(what, " is of another domain than its segment"));
    }
    bytes[block.segment] += block.size;
    if (in_backlog) waiting += block.size;
  }
  if (waiting != bytes_waiting_) {
    return absl::InternalError(
        absl::StrCat(waiting, " bytes wait, counted ", bytes_waiting_));
  }
  for (const auto& [stream, backlog] : backlogs_) {
    if (backlog->empty() == backlog->place.has_value()) {
      return absl::InternalError("a backlog is not where it should be asked");
    }
  }
  for (const std::unique_ptr<Segment>& segment : segments_) {
    absl::Status heap = segment->heap.CheckInvariants();
    if (!heap.ok()) return heap;
    if (bytes[segment.get()] != segment->heap.live_bytes()) {
      return absl::InternalError(absl::StrCat(
          "segment ", segment->number, " has ", segment->heap.live_bytes(),
          " bytes taken, of which its blocks know ", bytes[segment.get()]));
    }
  }
  return absl::OkStatus();
}

}  // namespace vmm::pool
