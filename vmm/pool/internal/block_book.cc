#include "vmm/pool/internal/block_book.h"

namespace vmm::pool {

Block* BlockBook::Make(Range& range, std::uint32_t node) {
  range.MakeRoomFor(node);
  if (unused_.empty()) unused_.Push(&records_.emplace_back());
  Block* const block = unused_.Pop();
  block->domain = range.domain;
  block->range = &range;
  block->node = node;
  block->backlog = nullptr;
  block->slot.store(Block::kNoSlot, std::memory_order_relaxed);
  Move(block, range.heap.block(node));
  range.SetBlock(node, block);
  return block;
}

void BlockBook::Move(Block* block, const OffsetHeap::Block& taken) {
  block->address.store(block->range->base() + taken.offset,
                       std::memory_order_relaxed);
  block->size = taken.size;
  block->segment = &block->range->SegmentAt(taken.offset);
}

std::uint64_t BlockBook::OffsetOf(const Block& block) {
  return block.address.load(std::memory_order_relaxed) - block.range->base() -
         block.segment->offset;
}

void BlockBook::Discard(Block* block) {
  block->state.store(BlockState::kUnused, std::memory_order_release);
  unused_.Push(block);
}

void BlockBook::Enter(Block* block) {
  // Not live before Allocate() says so; free, for everybody who finds it.
  block->state.store(BlockState::kFree, std::memory_order_release);
  addresses_.Insert(block);
  block->segment->starts.Insert(OffsetOf(*block) / OffsetHeap::kGranule);
}

void BlockBook::Leave(Block* block) {
  addresses_.Erase(block);
  block->segment->starts.Erase(OffsetOf(*block) / OffsetHeap::kGranule);
}

}  // namespace vmm::pool
