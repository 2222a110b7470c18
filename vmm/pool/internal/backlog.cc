#include "vmm/pool/internal/backlog.h"

#include "vmm/pool/internal/segment.h"

namespace vmm::pool {

SizeIndex& Backlog::IndexOf(const Block* block) {
  return block->segment->smallest == 0 ? small_ : large_;
}

void Backlog::Add(Block* block) {
  block->backlog = this;
  block->epoch = open_epoch_;
  block->older = newest_;
  block->newer = nullptr;
  (newest_ == nullptr ? oldest_ : newest_->newer) = block;
  newest_ = block;
  IndexOf(block).Insert(block);
}

void Backlog::AddBeside(Block* block, Block* other) {
  block->backlog = this;
  block->epoch = other->epoch;
  block->older = other;
  block->newer = other->newer;
  (other->newer == nullptr ? newest_ : other->newer->older) = block;
  other->newer = block;
  IndexOf(block).Insert(block);
}

void Backlog::Remove(Block* block) {
  IndexOf(block).Remove(block);
  (block->older == nullptr ? oldest_ : block->older->newer) = block->newer;
  (block->newer == nullptr ? newest_ : block->newer->older) = block->older;
  block->backlog = nullptr;
}

void Backlog::Shrink(Block* block, std::uint64_t size) {
  IndexOf(block).Remove(block);
  block->size = size;
  IndexOf(block).Insert(block);
}

Block* Backlog::Find(std::uint64_t size, std::uint64_t alignment,
                     bool any) const {
  if (Block* const block = small_.Find(size, alignment)) return block;
  Block* const block = large_.Find(size, alignment);
  return block != nullptr && (any || size >= block->segment->smallest)
             ? block
             : nullptr;
}

}  // namespace vmm::pool
