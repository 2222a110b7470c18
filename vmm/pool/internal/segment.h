// Segment: one shareable allocation that blocks are cut from; internal to vmm/.
#ifndef VMMSHARE_VMM_POOL_INTERNAL_SEGMENT_H_
#define VMMSHARE_VMM_POOL_INTERNAL_SEGMENT_H_

#include <cuda.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "vmm/memory/allocation.h"
#include "vmm/pool/internal/block.h"
#include "vmm/pool/internal/offset_heap.h"
#include "vmm/pool/internal/start_set.h"

namespace vmm::pool {

struct Segment {
  Segment(std::uint32_t its_number, Allocation memory)
      : number(its_number),
        address(memory.address()),
        allocation(std::move(memory)),
        heap(allocation->size()),
        starts(size() / OffsetHeap::kGranule) {}
  // Addresses without memory behind them: for tests of what only counts.
  Segment(std::uint32_t its_number, CUdeviceptr its_base, std::uint64_t bytes)
      : number(its_number),
        address(its_base),
        heap(bytes),
        starts(size() / OffsetHeap::kGranule) {}

  CUdeviceptr base() const { return address; }
  std::uint64_t size() const { return heap.size(); }
  // Bytes: what the addresses of its blocks can be multiples of.
  std::uint64_t alignment() const { return address & (~address + 1); }
  bool Contains(CUdeviceptr at) const {
    return at >= address && at - address < size();
  }

  // Nothing of it is in use, nor is it being exported.
  bool idle() const { return heap.empty() && exporters == 0; }

  // The record of what is taken under a node of the heap.
  Block* BlockAt(std::uint32_t node) const {
    return node < blocks.size() ? blocks[node] : nullptr;
  }
  void SetBlock(std::uint32_t node, Block* block) {
    if (node >= blocks.size()) {
      blocks.resize(std::max<std::size_t>(node + 1, 2 * blocks.size()));
    }
    blocks[node] = block;
  }

  std::uint32_t number;  // In its domain; 0 is none.
  const CUdeviceptr address;
  std::optional<Allocation> allocation;
  OffsetHeap heap;             // What is free here the GPU has passed.
  StartSet starts;             // Granules at which a block can be looked up.
  std::vector<Block*> blocks;  // By node of the heap.
  std::uint32_t domain = 0;
  // Requests below it are not served from here, as long as anything else can:
  // it was made for a large one, that may come again.
  std::uint64_t smallest = 0;
  bool exposed = false;  // Some peer has, or had, its handle.
  // Threads that export it without the lock: it stays where it is.
  int exporters = 0;
};

}  // namespace vmm::pool

#endif  // VMMSHARE_VMM_POOL_INTERNAL_SEGMENT_H_
