#include "vmm/pool/internal/backlog.h"

namespace vmm::pool {

void Backlog::Add(Block* block, std::uint64_t epoch) {
  Block* older = newest_;
  while (older != nullptr && older->epoch > epoch) older = older->older;
  Block* const newer = older == nullptr ? oldest_ : older->newer;
  block->backlog = this;
  block->epoch = epoch;
  block->older = older;
  block->newer = newer;
  (older == nullptr ? oldest_ : older->newer) = block;
  (newer == nullptr ? newest_ : newer->older) = block;
  by_size_.Insert(block);
}

void Backlog::AddBeside(Block* block, Block* other) {
  block->backlog = this;
  block->epoch = other->epoch;
  block->older = other;
  block->newer = other->newer;
  (other->newer == nullptr ? newest_ : other->newer->older) = block;
  other->newer = block;
  by_size_.Insert(block);
}

void Backlog::Remove(Block* block) {
  by_size_.Remove(block);
  (block->older == nullptr ? oldest_ : block->older->newer) = block->newer;
  (block->newer == nullptr ? newest_ : block->newer->older) = block->older;
  block->backlog = nullptr;
}

void Backlog::Shrink(Block* block, std::uint64_t size) {
  by_size_.Remove(block);
  block->size = size;
  by_size_.Insert(block);
}

}  // namespace vmm::pool
