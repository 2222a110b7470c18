// Segment: one shareable allocation of a range; internal to vmm/.
#ifndef VMMSHARE_VMM_POOL_INTERNAL_SEGMENT_H_
#define VMMSHARE_VMM_POOL_INTERNAL_SEGMENT_H_

#include <cstdint>
#include <optional>
#include <utility>

#include "vmm/memory/allocation.h"
#include "vmm/pool/internal/offset_heap.h"
#include "vmm/pool/internal/start_set.h"

namespace vmm::pool {

class Range;

struct Segment {
  explicit Segment(Allocation memory)
      : size(memory.size()),
        allocation(std::move(memory)),
        starts(size / OffsetHeap::kGranule) {}
  // No memory: for tests of what only counts.
  explicit Segment(std::uint64_t bytes)
      : size(bytes), starts(size / OffsetHeap::kGranule) {}

  std::uint64_t end() const { return offset + size; }

  const std::uint64_t size;  // Bytes.
  std::optional<Allocation> allocation;
  StartSet starts;           // Its granules at which a block can be looked up.
  std::uint32_t number = 0;  // In its domain; 0 is none.
  std::uint32_t domain = 0;
  Range* range = nullptr;
  std::uint64_t offset = 0;  // In the range.
  bool exposed = false;      // Some peer has, or had, its handle.
  // Threads that export it without the lock: it stays where it is.
  int exporters = 0;
};

}  // namespace vmm::pool

#endif  // VMMSHARE_VMM_POOL_INTERNAL_SEGMENT_H_
