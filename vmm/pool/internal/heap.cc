#include "vmm/pool/internal/heap.h"

#include <algorithm>
#include <optional>
#include <utility>

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
  const auto own = backlogs_.find(request.stream);
  Range* best = nullptr;
  for (const std::unique_ptr<Range>& range : ranges_) {
    if (range->addresses() == nullptr ||
        range->alignment() < request.alignment) {
      continue;
    }
    const std::optional<Place> found =
        range->FindPlace(request.size, request.alignment,
                         own == backlogs_.end() ? nullptr : own->second.get());
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
  place.own->freed_on = place.own->backlog->stream();
  RemoveFrom(*place.own->backlog, place.own);
  place.own->state.store(BlockState::kUnused, std::memory_order_release);
  return claim;
}

void Heap::Vacate(Range& range, const Place& place, const Claim& claim) {
  range.Vacate(claim);
  if (place.own == nullptr) return;
  range.Unclaim(*place.own);
  place.own->state.store(BlockState::kBacklog, std::memory_order_release);
  Backlog& backlog = BacklogOf(place.own->freed_on);
  AddTo(backlog, place.own, backlog.open_epoch());
  NoteFill(backlog);
}

Block* Heap::FillFor(Range& range, const Place& place, const Claim& claim,
                     std::unique_ptr<Segment> segment) {
  const std::optional<std::uint32_t> node =
      range.FillFor(place, claim, std::move(segment));
  if (place.own != nullptr) book_.Discard(place.own);
  if (!node.has_value()) return nullptr;
  Block* const block = book_.Make(range, *node);
  book_.Enter(block);
  return block;
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
    if (!cut.has_value()) continue;
    Block* const block = book_.Make(*range, cut->node);
    book_.Enter(block);
    return block;
  }
  return nullptr;
}

Block* Heap::TakeFrom(Backlog& backlog, const Request& request) {
  Block* const found = backlog.Find(request.size, request.alignment);
  return found == nullptr ? nullptr : CutFrom(backlog, found, request);
}

Block* Heap::CutFrom(Backlog& backlog, Block* block, const Request& request) {
  Range& range = *block->range;
  const std::uint64_t head =
      *LowestFit(block->address, block->size, request.size, request.alignment);
  if (head != 0) {
    const std::uint32_t node = range.heap.Split(block->node, head);
    if (node == OffsetHeap::kNoNode) return nullptr;
    bytes_waiting_ -= block->size - head;
    backlog.Shrink(block, head);
    block = AddBeside(backlog, block, node);
  }
  if (block->size > request.size) {
    const std::uint32_t node = range.heap.Split(block->node, request.size);
    if (node == OffsetHeap::kNoNode) return nullptr;
    AddBeside(backlog, block, node);
  }
  RemoveFrom(backlog, block);
  block->size = request.size;
  book_.Enter(block);
  return block;
}

Block* Heap::AddBeside(Backlog& backlog, Block* block, std::uint32_t node) {
  Block* const rest = book_.Make(*block->range, node);
  rest->state.store(BlockState::kBacklog, std::memory_order_release);
  backlog.AddBeside(rest, block);
  bytes_waiting_ += rest->size;
  return rest;
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
  if (backlog.empty() == !backlog.place.has_value()) return;
  if (backlog.empty()) {
    filled_.erase(*backlog.place);
    backlog.place.reset();
  } else {
    backlog.place = filled_.insert(filled_.end(), &backlog);
  }
}

void Heap::Put(Block* block, std::optional<std::uint64_t> epoch) {
  Range& range = *block->range;
  book_.Leave(block);
  if (block->freed_on == PassedStream()) {
    range.heap.Free(block->node);
    book_.Discard(block);
    return;
  }
  Backlog& backlog = BacklogOf(block->freed_on);
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

Backlog* Heap::Find(CUstream stream) {
  const auto found = backlogs_.find(stream);
  return found == backlogs_.end() ? nullptr : found->second.get();
}

Backlog& Heap::BacklogOf(CUstream stream) {
  std::unique_ptr<Backlog>& backlog = backlogs_[stream];
  if (backlog == nullptr) {
    backlog = std::make_unique<Backlog>(stream, first_epoch_);
  }
  return *backlog;
}

std::uint64_t Heap::Close(CUstream stream) {
  Backlog* const backlog = Find(stream);
  return backlog == nullptr ? first_epoch_++ : backlog->Close();
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
    block->range->heap.Free(block->node);
    book_.Discard(block);
  }
}

Block* Heap::TakeAfterWait(Backlog& backlog, std::uint64_t epoch,
                           const Request& request) {
  Block* const found = backlog.Find(request.size, request.alignment);
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
  for (Block* block : blocks) AbsorbInto(block, stream);
}

void Heap::AbsorbInto(Block* block, CUstream stream) {
  const OffsetHeap::Block grown = block->range->heap.Absorb(block->node);
  book_.Move(block, grown);
  book_.Enter(block);
  block->freed_on = stream;
  Put(block);
}

Block* Heap::TakeBesideFree(const Request& request) {
  Backlog* const own = Find(request.stream);
  if (own == nullptr) return nullptr;
  const std::uint64_t most =
      request.size + request.alignment - OffsetHeap::kGranule;
  const auto is_own = [own](const Block* block) {
    return block != nullptr && block->backlog == own;
  };
  for (Block* block = own->OldestUpTo(~std::uint64_t{0}); block != nullptr;
       block = block->newer) {
    const Range& range = *block->range;
    // From the lowest of a run on.
    if (is_own(range.BlockAt(range.heap.NextBelow(block->node)))) continue;
    std::vector<Block*> run;
    std::uint64_t size = range.heap.FreeBelow(block->node);
    for (Block* next = block; is_own(next);
         next = range.BlockAt(range.heap.NextAbove(next->node))) {
      size += next->size + range.heap.FreeAbove(next->node);
      run.push_back(next);
    }
    if (size < most || size == block->size) continue;
    for (Block* one : run) RemoveFrom(*own, one);
    for (Block* one : run) AbsorbInto(one, request.stream);
    return TakeFrom(*own, request);
  }
  return nullptr;
}

void Heap::Forget(CUstream stream) {
  const auto found = backlogs_.find(stream);
  if (found == backlogs_.end()) return;
  if (!found->second->empty() || found->second->is_asked) return;
  first_epoch_ = std::max(first_epoch_, found->second->open_epoch());
  backlogs_.erase(found);
}

}  // namespace vmm::pool
