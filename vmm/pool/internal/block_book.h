// BlockBook: the records of a pool's blocks, and which of them starts where;
// internal to vmm/.
#ifndef VMMSHARE_VMM_POOL_INTERNAL_BLOCK_BOOK_H_
#define VMMSHARE_VMM_POOL_INTERNAL_BLOCK_BOOK_H_

#include <cuda.h>

#include <cstdint>
#include <deque>

#include "vmm/pool/internal/address_table.h"
#include "vmm/pool/internal/block.h"
#include "vmm/pool/internal/offset_heap.h"
#include "vmm/pool/internal/range.h"

namespace vmm::pool {

// Find() is thread-safe, as AddressTable::Find(); the rest is for one thread at
// a time. Records are never deleted.
class BlockBook {
 public:
  Block* Find(CUdeviceptr address) const { return addresses_.Find(address); }

  // The next Enter() takes no memory.
  void MakeRoom() { addresses_.MakeRoom(); }
  // A record for what is taken under `node` of the range's heap; no address
  // leads to it yet.
  Block* Make(Range& range, std::uint32_t node);
  // It is that now. REQUIRES: no address leads to it.
  static void Move(Block* block, const OffsetHeap::Block& taken);
  // The record is unused. REQUIRES: no address leads to it.
  void Discard(Block* block);

  // Bytes from where its segment begins.
  static std::uint64_t OffsetOf(const Block& block);

  // From now on its address leads to it, and it is free.
  void Enter(Block* block);
  // No more.
  void Leave(Block* block);

  const std::deque<Block>& records() const { return records_; }

 private:
  AddressTable addresses_;
  std::deque<Block> records_;
  BlockList unused_;
};

}  // namespace vmm::pool

#endif  // VMMSHARE_VMM_POOL_INTERNAL_BLOCK_BOOK_H_
