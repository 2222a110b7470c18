// Where freed blocks go, until they are used again.
#include <memory>
#include <vector>

#include "vmm/pool/core.h"

namespace vmm::pool {

void Core::LetGoOfTickets(Block* block) {
  const std::uint32_t slot = block->slot.load(std::memory_order_relaxed);
  if (slot != Block::kNoSlot) {
    Domain& domain = *domains_[block->domain];
    domain.Withdraw(slot);
    if (domain.IsHeld(slot)) {
      held_.push_back(block);
      return;
    }
    domain.Recycle(slot);
    block->slot.store(Block::kNoSlot, std::memory_order_relaxed);
  }
  PutBack(block);
}

void Core::PutBack(Block* block) {
  if (block->freed_on == PassedStream()) {
    Merge(block);
    return;
  }
  const CacheKey key{block->size, block->freed_on, block->domain};
  BlockCache& recent = ArenaOf(block->domain, block->freed_on).recent;
  if (recent.Push(key, block)) return;
  MergeAll(recent.TakeBin(key));
  recent.Push(key, block);
}

void Core::PutBackAll(BlockList blocks) {
  while (!blocks.empty()) PutBack(blocks.Pop());
}

void Core::MergeAll(BlockList blocks) {
  while (!blocks.empty()) {
    Block* const block = blocks.Pop();
    const Arena* const home = block->segment->arena;
    if (home != nullptr && home->stream == block->freed_on) {
      Merge(block);
    } else {
      pending_.Add(block);
    }
  }
}

void Core::MergeFor(const Arena& arena) {
  for (const std::unique_ptr<Arena>& any : arenas_) {
    if (any->domain != arena.domain) continue;
    BlockList keep;
    for (BlockList blocks = any->recent.TakeAll(); !blocks.empty();) {
      Block* const block = blocks.Pop();
      const Arena* const home = block->segment->arena;
      if (home == any.get()) {
        Merge(block);
      } else if (home == &arena || home == nullptr) {
        pending_.Add(block);
      } else {
        keep.Push(block);  // Of more use to the stream that it was freed on.
      }
    }
    PutBackAll(keep);
  }
}

void Core::Merge(Block* block) {
  addresses_.Erase(block->address);
  block->state.store(BlockState::kUnused, std::memory_order_release);
  block->segment->heap.Free(block->node);
  unused_.Push(block);
}

void Core::EmptyCaches() {
  caches_.ForEach(
      [this](ThreadCache& cache) { PutBackAll(cache.blocks.TakeAll()); });
  for (const std::unique_ptr<Arena>& arena : arenas_) {
    MergeAll(arena->recent.TakeAll());
  }
}

void Core::Collect() {
  CollectHeld();
  BlockList passed = pending_.Collect(&last_error_);
  while (!passed.empty()) Merge(passed.Pop());
}

void Core::CollectHeld() {
  for (const std::unique_ptr<Domain>& domain : domains_) {
    domain->ForgetDeadPeers(&last_error_);
  }
  BlockList returned;
  std::erase_if(held_, [&](Block* block) {
    Domain& domain = *domains_[block->domain];
    const std::uint32_t slot = block->slot.load(std::memory_order_relaxed);
    if (domain.IsHeld(slot)) return false;
    domain.Recycle(slot);
    block->slot.store(Block::kNoSlot, std::memory_order_relaxed);
    // Not among the recent ones: whoever collects has looked there, and wants
    // the memory.
    if (block->freed_on == PassedStream()) {
      Merge(block);
    } else {
      returned.Push(block);
    }
    return true;
  });
  MergeAll(returned);
}

}  // namespace vmm::pool
