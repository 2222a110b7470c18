// Segments without memory, for tests of heaps.
#ifndef VMMSHARE_TESTS_UNIT_HEAP_SEGMENTS_H_
#define VMMSHARE_TESTS_UNIT_HEAP_SEGMENTS_H_

#include <cuda.h>

#include <cstdint>
#include <memory>

#include "vmm/pool/internal/heap.h"
#include "vmm/pool/internal/range.h"
#include "vmm/pool/internal/segment.h"

namespace vmm::pool {

// Has a segment of `size` bytes come at the beginning of the gap at `gap`.
inline Segment& FillGap(Range& range, std::uint64_t gap, std::uint64_t size) {
  static std::uint32_t number = 0;
  auto segment = std::make_unique<Segment>(size);
  segment->number = ++number;
  Segment& filled = *segment;
  range.Fill(*range.Take({gap, gap, gap, range.size() - gap, 0}, size),
             std::move(segment));
  return filled;
}

// A range of one segment.
inline Range& AddSegment(Heap& heap, CUdeviceptr base, std::uint64_t size) {
  Range& range =
      heap.Add(std::make_unique<Range>(heap.NextRange(), base, size));
  FillGap(range, 0, size);
  return range;
}

}  // namespace vmm::pool

#endif  // VMMSHARE_TESTS_UNIT_HEAP_SEGMENTS_H_
