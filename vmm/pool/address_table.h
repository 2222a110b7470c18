// AddressTable: from an address to its Block; internal to vmm/.
//
// Looking up takes no lock and waits for nobody, because every Free() does it;
// changing the table is for one thread at a time. Open addressing, half full
// at most: a cell whose block has gone is taken by the next that comes by.
// Replaced tables are kept, so that a reader in the middle of one is safe;
// each is half as large as the next.
#ifndef VMMSHARE_VMM_POOL_ADDRESS_TABLE_H_
#define VMMSHARE_VMM_POOL_ADDRESS_TABLE_H_

#include <cuda.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "vmm/pool/block.h"

namespace vmm::pool {

class AddressTable {
 public:
  AddressTable();

  // The block that starts at `address`, or null. Thread-safe. What is found
  // may be freed at the same moment: its state tells.
  Block* Find(CUdeviceptr address) const {
    const Cells& cells = *current_.load(std::memory_order_acquire);
    const std::size_t home = cells.Home(address);
    for (std::size_t i = 0; i <= cells.mask; ++i) {
      const Cell& cell = cells.cells[(home + i) & cells.mask];
      const CUdeviceptr key = cell.key.load(std::memory_order_acquire);
      if (key == 0) return nullptr;
      if (key != address) continue;
      Block* const block = cell.block.load(std::memory_order_acquire);
      // Looked at again: the cell may have got another block in between.
      if (block != nullptr &&
          cell.key.load(std::memory_order_relaxed) == address) {
        return block;
      }
    }
    return nullptr;
  }

  // One thread at a time. REQUIRES: no block at its address is in the table.
  void Insert(Block* block);
  // REQUIRES: there is one.
  void Erase(CUdeviceptr address);

 private:
  struct Cell {
    std::atomic<CUdeviceptr> key = 0;  // 0: never used.
    std::atomic<Block*> block = nullptr;
  };
  struct Cells {
    explicit Cells(unsigned bits)
        : shift(64 - bits),
          mask((std::size_t{1} << bits) - 1),
          cells(new Cell[mask + 1]) {}
    std::size_t Home(CUdeviceptr address) const {
      // The low bits of addresses are zero and the high ones all the same:
      // the product's high bits depend on all between.
      return static_cast<std::size_t>((address * 0x9E3779B97F4A7C15u) >> shift);
    }
    unsigned shift;
    std::size_t mask;
    std::unique_ptr<Cell[]> cells;
  };

  static void Put(Cells& cells, Block* block, CUdeviceptr address);
  void Grow();

  std::atomic<const Cells*> current_;
  std::vector<std::unique_ptr<Cells>> tables_;  // The last is the current one.
  std::size_t blocks_ = 0;
};

}  // namespace vmm::pool

#endif  // VMMSHARE_VMM_POOL_ADDRESS_TABLE_H_
