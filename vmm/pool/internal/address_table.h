// AddressTable: from an address to its Block; internal to vmm/.
//
// Looking up takes no lock and waits for nobody, because every Free() does it;
// changing the table is for one thread at a time. Linear probing, half full at
// most. What is erased leaves no mark: those behind it move up, so that the
// table is as fast after any number of operations as it was after the first.
//
// A cell is one word, so that a reader never sees half of a change: the block,
// and in the low bits that its alignment leaves a few bits of the address's
// hash, so that the blocks of other addresses need not be looked at.
//
// A table that was replaced is kept, since a reader may be in the middle of it;
// each is half as large as the next.
#ifndef VMMSHARE_VMM_POOL_INTERNAL_ADDRESS_TABLE_H_
#define VMMSHARE_VMM_POOL_INTERNAL_ADDRESS_TABLE_H_

#include <cuda.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "vmm/pool/internal/block.h"

namespace vmm::pool {

class AddressTable {
 public:
  AddressTable();

  // The block that starts at `address`, or null. Thread-safe. What is found
  // may be freed at the same moment: its state tells. While another thread
  // changes the table one that is there may be missed, as it moves past: who
  // needs to know asks again while nobody does.
  Block* Find(CUdeviceptr address) const {
    const Cells& cells = *current_.load(std::memory_order_acquire);
    const std::uint64_t hash = Hash(address);
    // The bound is for a reader of a table that is being changed: otherwise an
    // empty cell ends it.
    for (std::size_t i = cells.Home(hash), left = cells.mask; left > 0;
         i = (i + 1) & cells.mask, --left) {
      const Cell cell = cells.cells[i].load(std::memory_order_acquire);
      if (cell == 0) return nullptr;
      if ((cell & kTagMask) != Tag(hash)) continue;
      Block* const block = BlockOf(cell);
      if (block->address.load(std::memory_order_relaxed) == address) {
        return block;
      }
    }
    return nullptr;
  }

  // One thread at a time. The next Insert() takes no memory.
  void MakeRoom();
  // REQUIRES: no block at its address is in the table.
  void Insert(Block* block);
  // REQUIRES: it is in the table, at the address that it was inserted with.
  void Erase(const Block* block);

  std::size_t size() const { return blocks_; }

 private:
  using Cell = std::uintptr_t;  // 0, or a block and the tag of its address.
  static constexpr Cell kTagMask = alignof(Block) - 1;

  struct Cells {
    explicit Cells(unsigned bits)
        : shift(64 - bits),
          mask((std::size_t{1} << bits) - 1),
          cells(new std::atomic<Cell>[mask + 1]()) {}
    std::size_t Home(std::uint64_t hash) const {
      return static_cast<std::size_t>(hash >> shift);
    }
    unsigned shift;
    std::size_t mask;
    std::unique_ptr<std::atomic<Cell>[]> cells;
  };

  // The low bits of addresses are zero and the high ones all the same: the
  // product's high bits depend on all between, and choose the cell.
  static std::uint64_t Hash(CUdeviceptr address) {
    return (address >> 8) * 0x9E3779B97F4A7C15u;
  }
  static Cell Tag(std::uint64_t hash) {
    return static_cast<Cell>(hash >> 16) & kTagMask;
  }
  static Block* BlockOf(Cell cell) {
    return reinterpret_cast<Block*>(cell & ~kTagMask);
  }
  static std::uint64_t HashOf(Cell cell) {
    return Hash(BlockOf(cell)->address.load(std::memory_order_relaxed));
  }

  static void Put(Cells& cells, Block* block);
  void Grow();

  std::atomic<const Cells*> current_;
  std::vector<std::unique_ptr<Cells>> tables_;  // The last is the current one.
  std::size_t blocks_ = 0;
};

}  // namespace vmm::pool

#endif  // VMMSHARE_VMM_POOL_INTERNAL_ADDRESS_TABLE_H_
