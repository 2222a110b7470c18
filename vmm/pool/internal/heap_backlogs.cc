// A heap's backlogs: what the GPU has passed of them, what waits for another
// stream, and what becomes one with what is free.
#include <algorithm>
#include <vector>

#include "vmm/pool/internal/heap.h"

namespace vmm::pool {

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
    // So that the rest takes no memory.
    book_.MakeRoom();
    BacklogOf(stream);
    RemoveFrom(backlog, block);
    book_.Enter(block);
    block->freed_on = stream;
    Put(block);
  }
}

void Heap::Forget(CUstream stream) {
  const auto found = backlogs_.find(stream);
  if (found == backlogs_.end()) return;
  const Backlog& backlog = *found->second;
  if (!backlog.empty() || backlog.is_asked || backlog.is_lent) return;
  first_epoch_ = std::max(first_epoch_, backlog.open_epoch());
  backlogs_.erase(found);
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
    AbsorbAll(*own, run);
    Block* const found = own->Find(request.size, request.alignment);
    return found == nullptr ? nullptr : CutFrom(*own, found, request);
  }
  return nullptr;
}

void Heap::Absorb(CUstream stream) {
  Backlog* const backlog = Find(stream);
  if (backlog == nullptr) return;
  std::vector<Block*> blocks;
  for (Block* block = backlog->OldestUpTo(~std::uint64_t{0}); block != nullptr;
       block = block->newer) {
    blocks.push_back(block);
  }
  AbsorbAll(*backlog, blocks);
}

void Heap::AbsorbAll(Backlog& backlog, const std::vector<Block*>& blocks) {
  book_.MakeRoom();
  for (Block* block : blocks) RemoveFrom(backlog, block);
  for (Block* block : blocks) AbsorbInto(block, backlog.stream());
}

void Heap::AbsorbInto(Block* block, CUstream stream) {
  const OffsetHeap::Block grown = block->range->heap.Absorb(block->node);
  book_.Move(block, grown);
  book_.Enter(block);
  block->freed_on = stream;
  Put(block);
}

}  // namespace vmm::pool
