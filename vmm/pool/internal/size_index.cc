#include "vmm/pool/internal/size_index.h"

#include <bit>

#include "vmm/pool/internal/offset_heap.h"

namespace vmm::pool {
namespace {

// So many blocks of a class may not fit before the next class is looked at.
constexpr int kMostExamined = 8;

}  // namespace

std::size_t SizeIndex::ClassOf(std::uint64_t size) {
  const std::uint64_t granules = size / OffsetHeap::kGranule;
  const int shift =
      static_cast<int>(std::bit_width(granules | (1 << kSubBits))) - 1 -
      kSubBits;
  return (static_cast<std::size_t>(shift) << kSubBits) + (granules >> shift);
}

std::size_t SizeIndex::NextClass(std::size_t from) const {
  for (std::size_t word = from / 64; word < kWords; ++word) {
    std::uint64_t bits = words_[word];
    if (word == from / 64) bits &= ~std::uint64_t{0} << from % 64;
    if (bits != 0) {
      return word * 64 + static_cast<std::size_t>(std::countr_zero(bits));
    }
  }
  return kClasses;
}

void SizeIndex::Insert(Block* block) {
  const std::size_t at = ClassOf(block->size);
  Block*& head = heads_[at];
  block->prev = nullptr;
  block->next = head;
  if (head != nullptr) head->prev = block;
  head = block;
  words_[at / 64] |= std::uint64_t{1} << at % 64;
  bytes_ += block->size;
}

void SizeIndex::Remove(Block* block) {
  const std::size_t at = ClassOf(block->size);
  if (block->next != nullptr) block->next->prev = block->prev;
  if (block->prev != nullptr) {
    block->prev->next = block->next;
  } else {
    heads_[at] = block->next;
    if (block->next == nullptr) {
      words_[at / 64] &= ~(std::uint64_t{1} << at % 64);
    }
  }
  bytes_ -= block->size;
}

Block* SizeIndex::Find(std::uint64_t size, std::uint64_t alignment) const {
  if (bytes_ < size) return nullptr;
  for (std::size_t at = NextClass(ClassOf(size)); at < kClasses;
       at = NextClass(at + 1)) {
    int examined = 0;
    for (Block* block = heads_[at];
         block != nullptr && examined < kMostExamined;
         block = block->next, ++examined) {
      if (LowestFit(block->address, block->size, size, alignment)) {
        return block;
      }
    }
  }
  return nullptr;
}

}  // namespace vmm::pool
