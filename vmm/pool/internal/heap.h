// Heap: the memory of one domain, for all streams; internal to vmm/.
//
//   ranges      what is free in them the GPU has passed: any stream may have it
//   backlogs    one a stream: freed, and not known to be passed
//
// A stream is served from its own backlog or from the ranges, where the smaller
// piece does. What it frees goes into its backlog and becomes one with what it
// freed beside it, so that a stream splits and merges its memory without asking
// the GPU. What the GPU has passed goes back into the ranges and merges there. So
// memory that a stream does not use serves all others, whoever used it first.
//
// Arithmetic only: no lock, no driver call, no memory behind the addresses.
#ifndef VMMSHARE_VMM_POOL_INTERNAL_HEAP_H_
#define VMMSHARE_VMM_POOL_INTERNAL_HEAP_H_

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "vmm/pool/internal/backlog.h"
#include "vmm/pool/internal/block.h"
#include "vmm/pool/internal/block_book.h"
#include "vmm/pool/internal/range.h"
#include "vmm/pool/internal/segment.h"

namespace vmm::pool {

struct Request {
  std::uint64_t size = 0;  // Bytes, a multiple of the heap's granule.
  std::uint64_t alignment = 0;
  std::uint64_t requested = 0;
  CUstream stream = nullptr;
  std::uint32_t domain = 0;
};

// The stream of a block that the GPU has passed already.
inline CUstream PassedStream() {
  return reinterpret_cast<CUstream>(~std::uintptr_t{0});
}

// Thread-compatible.
class Heap {
 public:
  Heap(std::uint32_t domain, BlockBook& book) : domain_(domain), book_(book) {}
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  // --- Ranges and segments ---------------------------------------------------

  // That of a range that is made next.
  std::uint32_t NextRange() { return next_range_++; }
  Range& Add(std::unique_ptr<Range> range);
  // Those in which nothing is, nor is about to come.
  std::vector<std::unique_ptr<Range>> RemoveVacant();
  const std::vector<std::unique_ptr<Range>>& ranges() const { return ranges_; }
  template <typename Call>
  void ForEachSegment(const Call& call) const {
    for (const std::unique_ptr<Range>& range : ranges_) {
      for (const std::unique_ptr<Segment>& one : range->segments()) call(*one);
    }
  }
  // Where a segment makes room for a request; null where only another range does.
  Range* FindPlace(const Request& request, Place* place) const;
  // As Range's, with place.own, which nobody else is given meanwhile.
  std::optional<Claim> Take(Range& range, const Place& place,
                            std::uint64_t size);
  // Takes no memory.
  void Vacate(Range& range, const Place& place, const Claim& claim);
  // So that FillFor(), if that is next, needs no memory where there is a
  // place.own: it would be free for all streams where there is none.
  void MakeRoomFor(Range& range, const Claim& claim);
  // The block for which it came; null without nodes.
  Block* FillFor(Range& range, const Place& place, const Claim& claim,
                 std::unique_ptr<Segment> segment);
  void Clear();

  // --- Blocks ----------------------------------------------------------------

  // A block in state kFree, which work that comes on the stream later may use;
  // null when there is no room.
  Block* Take(const Request& request);
  // The same of what the stream freed together with what is free beside it, which
  // then waits for that stream. O(blocks that wait for it).
  Block* TakeBesideFree(const Request& request);
  // Takes a block back that was freed on block->freed_on: in an epoch that
  // Close() returned, or now. Where that takes memory and there is none, nothing
  // has changed.
  void Put(Block* block, std::optional<std::uint64_t> epoch = std::nullopt);

  // --- What the GPU has passed -----------------------------------------------

  // Null where the stream has freed nothing lately.
  Backlog* Find(CUstream stream) const;
  // Up to `most` of those that are not empty; asked for the longest time ago.
  // Next time others come first.
  std::vector<Backlog*> NextBacklogs(std::size_t most);
  std::size_t backlogs() const { return filled_.size(); }
  // Bytes in all of them.
  std::uint64_t bytes_waiting() const { return bytes_waiting_; }

  // Closes a stream's open epoch, also of one that has freed nothing lately: what
  // it frees from now on has a later one, though it be forgotten meanwhile.
  std::uint64_t Close(CUstream stream);
  // The GPU has passed what was freed there up to `epoch`: any stream may have
  // it.
  void Pass(Backlog& backlog, std::uint64_t epoch);
  // The stream of the request waits, on the GPU, for what was freed in
  // `backlog` up to `epoch`: takes a block from there. Null without room.
  Block* TakeAfterWait(Backlog& backlog, std::uint64_t epoch,
                       const Request& request);
  // The same, and all of it becomes that stream's.
  void MoveAfterWait(Backlog& backlog, std::uint64_t epoch, CUstream stream);
  // Makes what is free beside a stream's backlog part of it, wherever that is.
  void Absorb(CUstream stream);
  // The stream is none any more. It stays known while its backlog is not empty,
  // a block of it is lent, or somebody asks after it.
  void Forget(CUstream stream);

  // INTERNAL says what disagrees.
  absl::Status CheckInvariants() const;

 private:
  Backlog& BacklogOf(CUstream stream);
  // Of what the GPU has passed, out of a piece of less than `below` bytes.
  Block* TakePassed(const Request& request, std::uint64_t below);
  // Takes the request's bytes out of one that is in a backlog.
  Block* CutFrom(Backlog& backlog, Block* block, const Request& request);
  // Of what is taken under a node, which is free again where there is no memory
  // for a record: the block.
  Block* Record(Range& range, std::uint32_t node);
  // The record of what is left of a block beyond `size` bytes, while the block's
  // own still has all; null without nodes.
  Block* Split(Block* block, std::uint64_t size);
  // What was cut from another one that is in a backlog is there, too.
  void AddBeside(Backlog& backlog, Block* block, Block* other);
  void AddTo(Backlog& backlog, Block* block, std::uint64_t epoch);
  void RemoveFrom(Backlog& backlog, Block* block);
  void NoteFill(Backlog& backlog);
  // Makes what is free beside these part of them. REQUIRES: they are there.
  void AbsorbAll(Backlog& backlog, const std::vector<Block*>& blocks);
  // Of one that is in no backlog any more, and comes back to the stream's.
  void AbsorbInto(Block* block, CUstream stream);

  const std::uint32_t domain_;
  BlockBook& book_;
  std::vector<std::unique_ptr<Range>> ranges_;
  std::uint32_t next_range_ = 1;
  std::unordered_map<CUstream, std::unique_ptr<Backlog>> backlogs_;
  // Of a backlog that is made next: later than any epoch of one that is gone.
  std::uint64_t first_epoch_ = 1;
  std::list<Backlog*> filled_;  // Not empty; the next to be asked first.
  std::uint64_t bytes_waiting_ = 0;
};

}  // namespace vmm::pool

#endif  // VMMSHARE_VMM_POOL_INTERNAL_HEAP_H_
