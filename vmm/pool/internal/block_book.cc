#include "vmm/pool/internal/block_book.h"

namespace vmm::pool {
namespace {

std::uint64_t GranuleOf(const Block& block) {
  return (block.address.load(std::memory_order_relaxed) -
          block.segment->base()) /
         OffsetHeap::kGranule;
}

}  // namespace

Block* BlockBook::Make(Segment& segment, std::uint32_t node) {
  if (unused_.empty()) unused_.Push(&records_.emplace_back());
  Block* const block = unused_.Pop();
  const OffsetHeap::Block taken = segment.heap.block(node);
  block->domain = segment.domain;
  block->address.store(segment.base() + taken.offset,
                       std::memory_order_relaxed);
  block->size = taken.size;
  block->segment = &segment;
  block->node = node;
  block->backlog = nullptr;
  block->slot.store(Block::kNoSlot, std::memory_order_relaxed);
  segment.SetBlock(node, block);
  return block;
}

void BlockBook::Discard(Block* block) {
  block->state.store(BlockState::kUnused, std::memory_order_release);
  unused_.Push(block);
}

void BlockBook::Enter(Block* block) {
  // Not live before Allocate() says so; free, for everybody who finds it.
  block->state.store(BlockState::kFree, std::memory_order_release);
  addresses_.Insert(block);
  block->segment->starts.Insert(GranuleOf(*block));
}

void BlockBook::Leave(Block* block) {
  addresses_.Erase(block);
  block->segment->starts.Erase(GranuleOf(*block));
}

}  // namespace vmm::pool
