// Range: addresses of a domain, and the segments that are mapped there; internal
// to vmm/.
//
// Addresses cost nothing, so a range has more of them than memory. A segment is
// mapped where a block lacks room, beside what is free there: the block begins
// in one segment and ends in another. Where no memory is, is a *gap*.
//
//   | segment 1 | segment 2 | gap     | segment 3 | gap ...                |
//   | taken, fr | ee, taken |         | free      |                        |
//
// Arithmetic only, as Heap.
#ifndef VMMSHARE_VMM_POOL_INTERNAL_RANGE_H_
#define VMMSHARE_VMM_POOL_INTERNAL_RANGE_H_

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "vmm/memory/mapping.h"
#include "vmm/pool/internal/block.h"
#include "vmm/pool/internal/offset_heap.h"
#include "vmm/pool/internal/segment.h"

namespace vmm::pool {

// To a multiple of `unit`. REQUIRES: that is within 64 bits.
inline std::uint64_t RoundUp(std::uint64_t size, std::uint64_t unit) {
  return (size + unit - 1) / unit * unit;
}

// Where a block has room once memory has come. Offsets.
struct Place {
  std::uint64_t begin = 0;  // Of the block.
  std::uint64_t end = 0;
  std::uint64_t gap = 0;     // Where the gap begins in which it lacks memory.
  std::uint64_t room = 0;    // Bytes of the gap.
  std::uint64_t needed = 0;  // Bytes of memory that it lacks, from there on.
  Block* own = nullptr;      // Of its stream's backlog: a part of it.
};

// Addresses that nobody else uses meanwhile: nodes of the heap.
struct Claim {
  std::uint32_t gap =
      OffsetHeap::kNoNode;  // Of the segment that comes or goes.
  // What is free beside it, and below place.own.
  std::uint32_t below = OffsetHeap::kNoNode;
  std::uint32_t lowest = OffsetHeap::kNoNode;
  std::uint32_t above = OffsetHeap::kNoNode;
};

// Thread-compatible.
class Range {
 public:
  // Segments have so many bytes at least.
  static constexpr std::uint64_t kUnit = std::uint64_t{2} << 20;

  // All of it is a gap. `number`: in its domain, from 1. Segments begin and end
  // at multiples of `unit`, which is one of kUnit, and of which the size is one.
  Range(std::uint32_t number, AddressRange addresses,
        std::uint64_t unit = kUnit);
  // Of one segment that lies where it was made, and has no room beside it.
  Range(std::uint32_t number, CUdeviceptr base, std::uint64_t size);
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;

  std::uint32_t number() const { return number_; }
  CUdeviceptr base() const { return base_; }
  std::uint64_t size() const { return heap.size(); }
  // What more segments can be mapped at; null without.
  const std::shared_ptr<const AddressRange>& addresses() const {
    return addresses_;
  }
  // Bytes: what the addresses of its blocks can be multiples of.
  std::uint64_t alignment() const { return base_ & (~base_ + 1); }
  bool Contains(CUdeviceptr at) const { return at - base_ < size(); }

  // --- Segments --------------------------------------------------------------

  // In the order of their offsets.
  const std::vector<std::unique_ptr<Segment>>& segments() const {
    return segments_;
  }
  // Nothing is in it, nor is about to come.
  bool is_vacant() const { return segments_.empty() && claims_ == 0; }
  // The one around `offset`. REQUIRES: memory is there.
  Segment& SegmentAt(std::uint64_t offset) const;

  // The highest address at or below `inside` at which a block can be looked up.
  std::optional<CUdeviceptr> StartAtOrBelow(CUdeviceptr inside) const;

  // Where the least memory makes room for such a block, on a stream that has
  // `own`; none where no gap is large enough. REQUIRES: `alignment` up to
  // alignment().
  std::optional<Place> FindPlace(std::uint64_t size, std::uint64_t alignment,
                                 const Backlog* own = nullptr) const;
  // For a segment of `size` bytes that is being made, from place.needed to
  // place.room. Nothing when the heap has no nodes. place.own is the caller's.
  std::optional<Claim> Take(const Place& place, std::uint64_t size);
  // The segment has come, and all of it is free.
  void Fill(const Claim& claim, std::unique_ptr<Segment> segment);
  // The segment has come; returns the node of the block for which it did, which
  // has all that was claimed but what is free beyond its end. Nothing when the
  // heap has no nodes; then all but place.own is free.
  std::optional<std::uint32_t> FillFor(const Place& place, const Claim& claim,
                                       std::unique_ptr<Segment> segment);
  // It does not come, or is gone: a gap again. Takes no memory.
  void Vacate(const Claim& claim);
  // Of the place.own of one that did not come: it is taken again.
  void Unclaim(const Block& own) { claimed_bytes_ -= own.size; }

  // Nothing of them is taken.
  std::vector<Segment*> Idle() const;
  // Takes one of these out. Nothing when the heap has no nodes.
  std::optional<Claim> Remove(Segment& segment,
                              std::unique_ptr<Segment>* removed);

  // --- Blocks ----------------------------------------------------------------

  // Bytes of each segment that are in no block, and of the largest piece of them.
  struct Room {
    std::uint64_t free = 0;
    std::uint64_t largest = 0;
  };
  std::vector<Room> Rooms() const;
  // Bytes of its memory that are in blocks, and that are in none.
  std::uint64_t taken() const {
    return heap.live_bytes() - gap_bytes_ - claimed_bytes_;
  }
  std::uint64_t free() const { return heap.free_bytes(); }

  // The record of what is taken under a node of the heap; null for a gap.
  Block* BlockAt(std::uint32_t node) const {
    return node < blocks_.size() ? blocks_[node] : nullptr;
  }
  void SetBlock(std::uint32_t node, Block* block);
  // SetBlock() takes no memory.
  void MakeRoomFor(std::uint32_t node);

  // What is free here the GPU has passed. Gaps are taken, and in no record.
  OffsetHeap heap;
  std::uint32_t domain = 0;

  // INTERNAL says what disagrees.
  absl::Status CheckInvariants() const;

 private:
  using Segments = std::vector<std::unique_ptr<Segment>>;
  // The first segment that begins at `offset` or above.
  Segments::const_iterator FirstFrom(std::uint64_t offset) const;
  // Takes what is free there; true also when that is nothing.
  bool TakeFree(std::uint64_t begin, std::uint64_t end, std::uint32_t* node);
  // What was free beside the segment that was claimed, and below place.own.
  void GiveBackBeside(const Claim& claim);
  // Into the books, in place of the gap.
  void Insert(const Claim& claim, std::unique_ptr<Segment> segment);

  const std::uint32_t number_;
  const CUdeviceptr base_;
  const std::shared_ptr<const AddressRange> addresses_;
  const std::uint64_t unit_ = kUnit;
  Segments segments_;
  mutable Segment* recent_ = nullptr;  // Of SegmentAt().
  std::vector<Block*> blocks_;         // By node of the heap.
  struct Gap {
    std::uint32_t node = OffsetHeap::kNoNode;
    bool is_claimed = false;  // Of a segment that comes or goes.
  };
  using Gaps = std::map<std::uint64_t, Gap>;  // By offset.
  Gaps gaps_;
  std::uint64_t gap_bytes_ = 0;  // Claimed ones too.
  std::size_t claims_ = 0;
  std::uint64_t claimed_bytes_ = 0;  // Of memory beside gaps.
};

}  // namespace vmm::pool

#endif  // VMMSHARE_VMM_POOL_INTERNAL_RANGE_H_
