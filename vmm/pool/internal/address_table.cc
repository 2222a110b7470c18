#include "vmm/pool/internal/address_table.h"

#include <utility>

#include "platform/base/check.h"

namespace vmm::pool {
namespace {

constexpr unsigned kFirstBits = 10;

}  // namespace

AddressTable::AddressTable() {
  tables_.push_back(std::make_unique<Cells>(kFirstBits));
  current_.store(tables_.back().get(), std::memory_order_release);
}

void AddressTable::Put(Cells& cells, Block* block) {
  const CUdeviceptr address = block->address.load(std::memory_order_relaxed);
  const std::uint64_t hash = Hash(address);
  std::size_t i = cells.Home(hash);
  for (;; i = (i + 1) & cells.mask) {
    const Cell cell = cells.cells[i].load(std::memory_order_relaxed);
    if (cell == 0) break;
    platform::Check(
        (cell & kTagMask) != Tag(hash) ||
            BlockOf(cell)->address.load(std::memory_order_relaxed) != address,
        "two blocks of a pool at one address");
  }
  cells.cells[i].store(reinterpret_cast<Cell>(block) | Tag(hash),
                       std::memory_order_release);
}

void AddressTable::MakeRoom() {
  if (2 * (blocks_ + 1) > tables_.back()->mask + 1) Grow();
}

void AddressTable::Insert(Block* block) {
  MakeRoom();
  ++blocks_;
  Put(*tables_.back(), block);
}

void AddressTable::Erase(const Block* block) {
  Cells& table = *tables_.back();
  const std::size_t mask = table.mask;
  std::size_t hole =
      table.Home(Hash(block->address.load(std::memory_order_relaxed)));
  for (std::size_t tried = 0;; ++tried, hole = (hole + 1) & mask) {
    const Cell cell = table.cells[hole].load(std::memory_order_relaxed);
    platform::Check(cell != 0 && tried <= mask,
                    "no block of a pool at the address to be erased");
    if (BlockOf(cell) == block) break;
  }
  // Each of those behind that is nearer to its home in the hole moves there,
  // and leaves a hole itself. First it is at both places, then at one.
  for (std::size_t i = (hole + 1) & mask;; i = (i + 1) & mask) {
    const Cell cell = table.cells[i].load(std::memory_order_relaxed);
    if (cell == 0) break;
    const std::size_t from_home = (i - table.Home(HashOf(cell))) & mask;
    if (from_home < ((i - hole) & mask)) continue;
    table.cells[hole].store(cell, std::memory_order_release);
    hole = i;
  }
  table.cells[hole].store(0, std::memory_order_release);
  --blocks_;
}

void AddressTable::Grow() {
  const Cells& old = *tables_.back();
  auto larger = std::make_unique<Cells>(64 - old.shift + 1);
  for (std::size_t i = 0; i <= old.mask; ++i) {
    const Cell cell = old.cells[i].load(std::memory_order_relaxed);
    if (cell != 0) Put(*larger, BlockOf(cell));
  }
  // First what may fail: the current one is the last for who changes it.
  tables_.push_back(std::move(larger));
  current_.store(tables_.back().get(), std::memory_order_release);
}

}  // namespace vmm::pool
