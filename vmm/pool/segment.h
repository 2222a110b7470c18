// Segment: one shareable allocation that blocks are cut from, and Arena: the
// segments whose blocks one stream uses; internal to vmm/.
#ifndef VMMSHARE_VMM_POOL_SEGMENT_H_
#define VMMSHARE_VMM_POOL_SEGMENT_H_

#include <cuda.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "vmm/allocation.h"
#include "vmm/pool/block.h"
#include "vmm/pool/offset_heap.h"
#include "vmm/pool/thread_cache.h"

namespace vmm::pool {

struct Segment;

// Blocks freed on the arena's own stream go back to their heaps at once: all
// that is cut from them is used on that stream, later. So the heaps need no
// events, and can merge and split as they like.
struct Arena {
  std::uint32_t domain = 0;
  CUstream stream = nullptr;
  BlockCache
      recent;  // Blocks freed on `stream`, whoever's segments they are of.
  std::vector<Segment*> segments;
};

struct Segment {
  Segment(std::uint32_t its_number, Allocation memory)
      : number(its_number),
        allocation(std::move(memory)),
        heap(allocation.size()) {}

  CUdeviceptr base() const { return allocation.address(); }
  std::uint64_t size() const { return allocation.size(); }
  // Bytes: what the addresses of its blocks can be multiples of.
  std::uint64_t alignment() const { return base() & (~base() + 1); }
  bool Contains(CUdeviceptr address) const {
    return address >= base() && address - base() < size();
  }

  std::uint32_t number;  // In its domain; 0 is none.
  Allocation allocation;
  OffsetHeap heap;
  std::uint32_t domain = 0;
  // Null: the next arena of the domain that needs memory takes it. The GPU has
  // passed every use of its free memory then.
  Arena* arena = nullptr;
  bool exposed = false;  // Some peer has, or had, its handle.
};

}  // namespace vmm::pool

#endif  // VMMSHARE_VMM_POOL_SEGMENT_H_
