#include "vmm/pool/address_table.h"

#include "platform/check.h"

namespace vmm::pool {
namespace {

constexpr unsigned kFirstBits = 10;

}  // namespace

AddressTable::AddressTable() {
  tables_.push_back(std::make_unique<Cells>(kFirstBits));
  current_.store(tables_.back().get(), std::memory_order_release);
}

void AddressTable::Put(Cells& cells, Block* block, CUdeviceptr address) {
  std::size_t i = cells.Home(address) & cells.mask;
  while (cells.cells[i].block.load(std::memory_order_relaxed) != nullptr) {
    i = (i + 1) & cells.mask;
  }
  // The key first: a reader that sees the block must not take it for that of
  // the cell's last key.
  cells.cells[i].key.store(address, std::memory_order_release);
  cells.cells[i].block.store(block, std::memory_order_release);
}

void AddressTable::Insert(Block* block) {
  platform::Check(Find(block->address) == nullptr,
                  "two blocks of a pool at one address");
  if (2 * (blocks_ + 1) > tables_.back()->mask + 1) Grow();
  ++blocks_;
  Put(*tables_.back(), block, block->address);
}

void AddressTable::Erase(CUdeviceptr address) {
  Cells& cells = *tables_.back();
  std::size_t i = cells.Home(address) & cells.mask;
  for (std::size_t tried = 0;; ++tried, i = (i + 1) & cells.mask) {
    platform::Check(tried <= cells.mask,
                    "no block of a pool at the address to be erased");
    if (cells.cells[i].key.load(std::memory_order_relaxed) == address &&
        cells.cells[i].block.load(std::memory_order_relaxed) != nullptr) {
      break;
    }
  }
  cells.cells[i].block.store(nullptr, std::memory_order_release);
  --blocks_;
  // At the end of a chain, cells without a block make it longer for nothing.
  while (cells.cells[(i + 1) & cells.mask].key.load(
             std::memory_order_relaxed) == 0 &&
         cells.cells[i].key.load(std::memory_order_relaxed) != 0 &&
         cells.cells[i].block.load(std::memory_order_relaxed) == nullptr) {
    cells.cells[i].key.store(0, std::memory_order_release);
    i = (i - 1) & cells.mask;
  }
}

void AddressTable::Grow() {
  const Cells& old = *tables_.back();
  auto larger = std::make_unique<Cells>(64 - old.shift + 1);
  for (std::size_t i = 0; i <= old.mask; ++i) {
    Block* const block = old.cells[i].block.load(std::memory_order_relaxed);
    if (block == nullptr) continue;
    Put(*larger, block, old.cells[i].key.load(std::memory_order_relaxed));
  }
  current_.store(larger.get(), std::memory_order_release);
  tables_.push_back(std::move(larger));
}

}  // namespace vmm::pool
