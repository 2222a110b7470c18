#include "vmm/pool/internal/heap.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"

namespace vmm::pool {

Range& Heap::Add(std::unique_ptr<Range> range) {
  range->domain = domain_;
  return *ranges_.emplace_back(std::move(range));
}

std::vector<std::unique_ptr<Range>> Heap::RemoveVacant() {
  std::vector<std::unique_ptr<Range>> vacant;
  for (std::unique_ptr<Range>& range : ranges_) {
    if (range->is_vacant()) vacant.push_back(std::move(range));
  }
  std::erase(ranges_, nullptr);
  return vacant;
}

Range* Heap::FindPlace(const Request& request, Place* place) const {
  const Backlog* const own = Find(request.stream);
  Range* best = nullptr;
  for (const std::unique_ptr<Range>& range : ranges_) {
    if (range->addresses() == nullptr ||
        range->alignment() < request.alignment) {
      continue;
    }
    const std::optional<Place> found =
        range->FindPlace(request.size, request.alignment, own);
    if (!found.has_value()) continue;
    if (best != nullptr && place->needed <= found->needed) continue;
    best = range.get();
    *place = *found;
  }
  return best;
}

std::optional<Claim> Heap::Take(Range& range, const Place& place,
                                std::uint64_t size) {
  std::optional<Claim> claim = range.Take(place, size);
  if (!claim.has_value() || place.own == nullptr) return claim;
  // What was cut from another does not know it.
  Backlog& backlog = *place.own->backlog;
  place.own->freed_on = backlog.stream();
  RemoveFrom(backlog, place.own);
  backlog.is_lent = true;
  place.own->state.store(BlockState::kUnused, std::memory_order_release);
  return claim;
}

void Heap::Vacate(Range& range, const Place& place, const Claim& claim) {
  range.Vacate(claim);
  if (place.own == nullptr) return;
  range.Unclaim(*place.own);
  place.own->state.store(BlockState::kBacklog, std::memory_order_release);
  Backlog& backlog = *Find(place.own->freed_on);
  backlog.is_lent = false;
  AddTo(backlog, place.own, backlog.open_epoch());
  NoteFill(backlog);
}

void Heap::MakeRoomFor(Range& range, const Claim& claim) {
  book_.MakeRoom();
  // The lowest part has the record of all; that of place.own is in use.
  if (claim.lowest != OffsetHeap::kNoNode) range.MakeRoomFor(claim.lowest);
}

Block* Heap::FillFor(Range& range, const Place& place, const Claim& claim,
                     std::unique_ptr<Segment> segment) {
  const std::optional<std::uint32_t> node =
      range.FillFor(place, claim, std::move(segment));
  if (place.own != nullptr) {
    Find(place.own->freed_on)->is_lent = false;
    book_.Discard(place.own);
  }
  return node.has_value() ? Record(range, *node) : nullptr;
}

void Heap::Clear() {
  filled_.clear();
  backlogs_.clear();
  ranges_.clear();
  bytes_waiting_ = 0;
}

Block* Heap::Take(const Request& request) {
  Backlog* const own = Find(request.stream);
  Block* const waiting =
      own == nullptr ? nullptr : own->Find(request.size, request.alignment);
  if (waiting == nullptr) return TakePassed(request, OffsetHeap::kAnySize);
  // A larger piece is left whole for a larger block.
  if (waiting->size != request.size) {
    if (Block* const block = TakePassed(request, waiting->size)) return block;
  }
  if (Block* const block = CutFrom(*own, waiting, request)) return block;
  return TakePassed(request, OffsetHeap::kAnySize);
}

Block* Heap::TakePassed(const Request& request, std::uint64_t below) {
  for (const std::unique_ptr<Range>& range : ranges_) {
    if (range->free() < request.size ||
        range->alignment() < request.alignment) {
      continue;
    }
    const std::optional<OffsetHeap::Block> cut =
        range->heap.Allocate(request.size, request.alignment, below);
    if (cut.has_value()) return Record(*range, cut->node);
  }
  return nullptr;
}

Block* Heap::Record(Range& range, std::uint32_t node) {
  // What is in no record would never be freed.
  absl::Cleanup free = [&] { range.heap.Free(node); };
  book_.MakeRoom();
  Block* const block = book_.Make(range, node);
  std::move(free).Cancel();
  book_.Enter(block);
  return block;
}

Block* Heap::CutFrom(Backlog& backlog, Block* block, const Request& request) {
  const std::uint64_t head =
      *LowestFit(block->address, block->size, request.size, request.alignment);
  book_.MakeRoom();
  if (head != 0) {
    Block* const rest = Split(block, head);
    if (rest == nullptr) return nullptr;
    bytes_waiting_ -= block->size - head;
    backlog.Shrink(block, head);
    AddBeside(backlog, rest, block);
    block = rest;
  }
  if (block->size > request.size) {
    Block* const rest = Split(block, request.size);
    if (rest == nullptr) return nullptr;
    AddBeside(backlog, rest, block);
  }
  RemoveFrom(backlog, block);
  block->size = request.size;
  book_.Enter(block);
  return block;
}

Block* Heap::Split(Block* block, std::uint64_t size) {
  Range& range = *block->range;
  const std::uint32_t node = range.heap.Split(block->node, size);
  if (node == OffsetHeap::kNoNode) return nullptr;
  absl::Cleanup join = [&] { range.heap.Join(block->node, node); };
  Block* const rest = book_.Make(range, node);
  std::move(join).Cancel();
  return rest;
}

void Heap::AddBeside(Backlog& backlog, Block* block, Block* other) {
  block->state.store(BlockState::kBacklog, std::memory_order_release);
  backlog.AddBeside(block, other);
  bytes_waiting_ += block->size;
}

void Heap::AddTo(Backlog& backlog, Block* block, std::uint64_t epoch) {
  bytes_waiting_ += block->size;
  backlog.Add(block, epoch);
}

void Heap::RemoveFrom(Backlog& backlog, Block* block) {
  bytes_waiting_ -= block->size;
  backlog.Remove(block);
  NoteFill(backlog);
}

void Heap::NoteFill(Backlog& backlog) {
  if (backlog.empty() == !backlog.entry.empty()) return;
  if (backlog.empty()) {
    backlog.entry.splice(backlog.entry.end(), filled_, backlog.place);
  } else {
    filled_.splice(filled_.end(), backlog.entry);
  }
}

void Heap::Put(Block* block, std::optional<std::uint64_t> epoch) {
  Range& range = *block->range;
  if (block->freed_on == PassedStream()) {
    book_.Leave(block);
    range.heap.Free(block->node);
    book_.Discard(block);
    return;
  }
  Backlog& backlog = BacklogOf(block->freed_on);
  book_.Leave(block);
  // The latest of all that becomes one.
  std::uint64_t latest = epoch.value_or(backlog.open_epoch());
  block->state.store(BlockState::kBacklog, std::memory_order_release);
  // What is beside it may also be a gap, or nothing that is taken.
  if (Block* const lower = range.BlockAt(range.heap.Below(block->node));
      lower != nullptr && lower->backlog == &backlog) {
    bytes_waiting_ -= lower->size;
    latest = std::max(latest, lower->epoch);
    backlog.Remove(lower);
    range.heap.Join(lower->node, block->node);
    lower->size += block->size;
    book_.Discard(std::exchange(block, lower));
  }
  if (Block* const upper = range.BlockAt(range.heap.Above(block->node));
      upper != nullptr && upper->backlog == &backlog) {
    bytes_waiting_ -= upper->size;
    latest = std::max(latest, upper->epoch);
    backlog.Remove(upper);
    range.heap.Join(block->node, upper->node);
    block->size += upper->size;
    book_.Discard(upper);
  }
  AddTo(backlog, block, latest);
  NoteFill(backlog);
}

Backlog* Heap::Find(CUstream stream) const {
  const auto found = backlogs_.find(stream);
  return found == backlogs_.end() ? nullptr : found->second.get();
}

Backlog& Heap::BacklogOf(CUstream stream) {
  if (Backlog* const known = Find(stream)) return *known;
  auto made = std::make_unique<Backlog>(stream, first_epoch_);
  return *backlogs_.emplace(stream, std::move(made)).first->second;
}

}  // namespace vmm::pool
