// OffsetHeap::CheckInvariants(): each fault that it looks for, made on purpose,
// and the words for it.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "tests/unit/heap_fault.h"
#include "tests/unit/heap_segments.h"
#include "vmm/pool/internal/block_book.h"
#include "vmm/pool/internal/heap.h"
#include "vmm/pool/internal/offset_heap.h"

namespace vmm::pool {

// What an OffsetHeap keeps, to be spoilt.
class OffsetHeapParts {
 public:
  explicit OffsetHeapParts(OffsetHeap& heap)
      : unused(heap.unused_),
        unused_count(heap.unused_count_),
        live_granules(heap.live_granules_),
        live_blocks(heap.live_blocks_),
        summary(heap.summary_),
        words(heap.words_),
        nodes(heap.nodes_),
        places(heap.places_),
        classes(heap.classes_) {}

  static constexpr std::uint32_t kFree = OffsetHeap::Node::kFree;
  static constexpr std::uint32_t kClasses = OffsetHeap::kClasses;

  decltype(OffsetHeap::unused_)& unused;
  decltype(OffsetHeap::unused_count_)& unused_count;
  decltype(OffsetHeap::live_granules_)& live_granules;
  decltype(OffsetHeap::live_blocks_)& live_blocks;
  decltype(OffsetHeap::summary_)& summary;
  decltype(OffsetHeap::words_)& words;
  decltype(OffsetHeap::nodes_)& nodes;
  decltype(OffsetHeap::places_)& places;
  decltype(OffsetHeap::classes_)& classes;
};

namespace {

using Parts = OffsetHeapParts;

constexpr std::uint64_t kGranule = OffsetHeap::kGranule;

// Of 16 granules: node 1 has two, node 2 three that are free, node 3 one, and
// node 4 the rest, which is free. Nodes 5 to 63 are unused.
OffsetHeap FourRanges() {
  OffsetHeap heap(16 * kGranule);
  static_cast<void>(heap.Allocate(2 * kGranule, kGranule));
  const auto hole = heap.Allocate(3 * kGranule, kGranule);
  static_cast<void>(heap.Allocate(kGranule, kGranule));
  heap.Free(hole->node);
  return heap;
}

struct Fault {
  void (*spoil)(Parts& heap);
  const char* words;
};

void ExpectFaults(const std::vector<Fault>& faults) {
  for (const Fault& fault : faults) {
    OffsetHeap heap = FourRanges();
    ASSERT_EQ(heap.CheckInvariants(), absl::OkStatus());
    Parts parts(heap);
    fault.spoil(parts);
    ExpectFault(heap.CheckInvariants(), fault.words);
  }
}

TEST(OffsetHeapCheck, SaysWhichRangeIsWrong) {
  ExpectFaults({
      {[](Parts& heap) { heap.places.pop_back(); }, "63 places for 64 nodes"},
      {[](Parts& heap) { heap.nodes[0].size = 1; },
       "the border has size 1 or is free"},
      {[](Parts& heap) { heap.nodes[0].prev_and_state |= Parts::kFree; },
       "the border has size 0 or is free"},
      {[](Parts& heap) { heap.nodes[1].next = 64; }, "range 64 has no node"},
      {[](Parts& heap) { heap.nodes[2].offset = 3; },
       "range 2 begins at granule 3, the one below ends at 2"},
      {[](Parts& heap) { heap.nodes[3].size = 0; },
       "range 3 at granule 5 of 16 has 0"},
      {[](Parts& heap) { heap.nodes[3].size = 12; },
       "range 3 at granule 5 of 16 has 12"},
      {[](Parts& heap) { heap.nodes[3].prev_and_state = 1; },
       "below range 3 is 2, it says 1"},
      {[](Parts& heap) { heap.nodes[3].prev_and_state |= Parts::kFree; },
       "ranges 2 and 3 are free neighbours at granule 5"},
      {[](Parts& heap) { heap.nodes[3].next = 0; },
       "the ranges end at granule 6 of 16, the last is 3 and not 4"},
      {[](Parts& heap) { heap.nodes[0].prev_and_state = 3; },
       "the ranges end at granule 16 of 16, the last is 4 and not 3"},
      {[](Parts& heap) { heap.live_blocks = 3; },
       "2 blocks of 3 granules, counted 3 of 3"},
      {[](Parts& heap) { heap.live_granules = 4; },
       "2 blocks of 3 granules, counted 2 of 4"},
  });
}

TEST(OffsetHeapCheck, SaysWhichClassOfFreeRangesIsWrong) {
  ExpectFaults({
      {[](Parts& heap) { heap.classes[3].push_back(64); },
       "range 64 has no node"},
      {[](Parts& heap) { heap.classes[3].push_back(1); },
       "class 3 has range 1 of 2 granules, free: 0"},
      {[](Parts& heap) { heap.classes[2].push_back(2); },
       "class 2 has range 2 of 3 granules, free: 1"},
      {[](Parts& heap) { heap.classes[3].push_back(2); },
       "class 3 has range 2 at place 1, it says 0"},
      {[](Parts& heap) { heap.words[0] &= ~(std::uint64_t{1} << 3); },
       "class 3 has 1 ranges, its bit says 0"},
      {[](Parts& heap) { heap.words[0] |= 1 << 4; },
       "class 4 has 0 ranges, its bit says 1"},
      {[](Parts& heap) { heap.summary = 0; },
       "word 0 is not 0: 1, the summary says 0"},
      {[](Parts& heap) { heap.summary |= 2; },
       "word 1 is not 0: 0, the summary says 1"},
      {[](Parts& heap) {
         heap.words[Parts::kClasses / 64] |= std::uint64_t{1} << 63;
         heap.summary |= std::uint64_t{1} << Parts::kClasses / 64;
       },
       "a class above the last has its bit set"},
      {[](Parts& heap) {
         heap.classes[3].clear();
         heap.words[0] &= ~(std::uint64_t{1} << 3);
       },
       "1 ranges are in classes, 2 are free"},
  });
}

TEST(OffsetHeapCheck, SaysWhichUnusedNodeIsWrong) {
  ExpectFaults({
      {[](Parts& heap) { heap.unused_count = 58; },
       "more than 58 unused nodes, or no node 63"},
      {[](Parts& heap) { heap.nodes[63].next = 64; },
       "more than 59 unused nodes, or no node 64"},
      {[](Parts& heap) { heap.nodes[63].next = 5; },
       "more than 59 unused nodes, or no node 5"},
      {[](Parts& heap) { heap.nodes[5].size = 1; }, "unused node 5 is a range"},
      {[](Parts& heap) { heap.nodes[6].prev_and_state |= Parts::kFree; },
       "unused node 6 is a range"},
      {[](Parts& heap) { heap.unused_count = 60; },
       "59 unused nodes, counted 60; 5 used ones of 64"},
      {[](Parts& heap) {
         heap.unused = 6;
         heap.unused_count = 58;
       },
       "58 unused nodes, counted 58; 5 used ones of 64"},
  });
}

TEST(OffsetHeapCheck, IsMadeOfEachRange) {
  BlockBook book;
  Heap heap(0, book);
  AddSegment(heap, CUdeviceptr{1} << 40, 16 * kGranule);
  ASSERT_EQ(heap.CheckInvariants(), absl::OkStatus());
  Parts(heap.ranges().front()->heap).live_blocks = 9;
  ExpectFault(heap.CheckInvariants(),
              "offset heap: 0 blocks of 0 granules, counted 9 of 0");
}

}  // namespace
}  // namespace vmm::pool
