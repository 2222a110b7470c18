// Heap: the memory of one domain, for all streams; internal to vmm/.
//
//   segments    what is free in them the GPU has passed: any stream may have it
//   backlogs    one a stream: freed, and not known to be passed
//
// A stream is served from its own backlog, then from the segments. What it
// frees goes into its backlog and becomes one with what it freed beside it, so
// that a stream splits and merges its memory without asking the GPU. What the
// GPU has passed goes back into the segments and merges there. So memory that
// a stream does not use serves all others, whoever used it first.
//
// Arithmetic only: no lock, no driver call, no memory behind the addresses.
#ifndef VMMSHARE_VMM_POOL_INTERNAL_HEAP_H_
#define VMMSHARE_VMM_POOL_INTERNAL_HEAP_H_

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "vmm/pool/internal/backlog.h"
#include "vmm/pool/internal/block.h"
#include "vmm/pool/internal/block_book.h"
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

  // --- Segments --------------------------------------------------------------

  void Add(std::unique_ptr<Segment> segment);
  // REQUIRES: it is here, and nothing in it is taken.
  std::unique_ptr<Segment> Remove(const Segment& segment);
  const std::vector<std::unique_ptr<Segment>>& segments() const {
    return segments_;
  }
  void Clear();

  // --- Blocks ----------------------------------------------------------------

  // A block in state kFree, which work that comes on the stream later may use;
  // null when there is no room. `any`: of whatever segment.
  Block* Take(const Request& request, bool any = false);
  // A segment of which nothing is taken, as one block.
  Block* TakeWhole(Segment& segment);
  // Takes a block back that was freed on block->freed_on.
  void Put(Block* block);

  // --- What the GPU has passed -----------------------------------------------

  // Null where the stream has freed nothing lately.
  Backlog* Find(CUstream stream);
  // Up to `most` of those that are not empty; asked for the longest time ago.
  // Next time others come first.
  std::vector<Backlog*> NextBacklogs(std::size_t most);
  std::size_t backlogs() const { return filled_.size(); }
  // Bytes in all of them.
  std::uint64_t bytes_waiting() const { return bytes_waiting_; }

  // The GPU has passed what was freed there up to `epoch`: any stream may have
  // it.
  void Pass(Backlog& backlog, std::uint64_t epoch);
  // The stream of the request waits, on the GPU, for what was freed in
  // `backlog` up to `epoch`: takes a block from there. Null without room.
  Block* TakeAfterWait(Backlog& backlog, std::uint64_t epoch,
                       const Request& request);
  // The same, and all of it becomes that stream's.
  void MoveAfterWait(Backlog& backlog, std::uint64_t epoch, CUstream stream);
  // Makes what is free beside a stream's backlog part of it: room for a request
  // that neither has room for.
  void Absorb(CUstream stream);
  // The stream is none any more. It stays known while its backlog is not empty,
  // or somebody asks after it.
  void Forget(CUstream stream);

  // INTERNAL says what disagrees.
  absl::Status CheckInvariants() const;

 private:
  Backlog& BacklogOf(CUstream stream);
  Block* TakeFrom(Backlog& backlog, const Request& request, bool any);
  // Takes the request's bytes out of one that is in a backlog.
  Block* CutFrom(Backlog& backlog, Block* block, const Request& request);
  void AddTo(Backlog& backlog, Block* block);
  void RemoveFrom(Backlog& backlog, Block* block);
  void NoteFill(Backlog& backlog);

  const std::uint32_t domain_;
  BlockBook& book_;
  std::vector<std::unique_ptr<Segment>> segments_;
  std::unordered_map<CUstream, std::unique_ptr<Backlog>> backlogs_;
  std::list<Backlog*> filled_;  // Not empty; the next to be asked first.
  std::uint64_t bytes_waiting_ = 0;
};

}  // namespace vmm::pool

#endif  // VMMSHARE_VMM_POOL_INTERNAL_HEAP_H_
