// Backlog: what one stream has freed in one domain, and the GPU may not have
// passed; internal to vmm/.
//
// The stream itself may have it again at once: the GPU does its work in order.
// Anybody else may once the GPU has passed the point where it was freed. To
// know that needs no look at each block: each carries an *epoch*, a number that
// only grows. Closing an epoch and then recording an event makes a *point*: the
// GPU has done with all that was freed up to that epoch when it has passed the
// event. The blocks are in the order of their epochs, so that those of a point
// are the oldest ones.
//
// No driver call here: points.h makes them, while no lock is held.
#ifndef VMMSHARE_VMM_POOL_INTERNAL_BACKLOG_H_
#define VMMSHARE_VMM_POOL_INTERNAL_BACKLOG_H_

#include <cuda.h>

#include <cstdint>
#include <list>
#include <vector>

#include "vmm/memory/internal/recorded_event.h"
#include "vmm/pool/internal/block.h"
#include "vmm/pool/internal/size_index.h"

namespace vmm::pool {

// In a stream's work, after all that was freed up to an epoch.
struct StreamPoint {
  OwnedEvent event;
  std::uint64_t epoch = 0;
};

// Thread-compatible.
class Backlog {
 public:
  // `first_epoch`: later than any that the stream's earlier backlogs had.
  Backlog(CUstream stream, std::uint64_t first_epoch)
      : stream_(stream), open_epoch_(first_epoch) {}
  Backlog(const Backlog&) = delete;
  Backlog& operator=(const Backlog&) = delete;

  CUstream stream() const { return stream_; }
  bool empty() const { return oldest_ == nullptr; }
  std::uint64_t bytes() const { return by_size_.bytes(); }

  // Freed in `epoch`, which is the open one for what is freed now. O(blocks of
  // later epochs).
  void Add(Block* block, std::uint64_t epoch);
  // One of the same epoch as `other`, which is here.
  void AddBeside(Block* block, Block* other);
  // REQUIRES: it is here.
  void Remove(Block* block);
  // Makes one that is here smaller: it keeps its lowest bytes, and its age.
  void Shrink(Block* block, std::uint64_t size);

  // One in which a request has room, as SizeIndex::Find().
  Block* Find(std::uint64_t size, std::uint64_t alignment) const {
    return by_size_.Find(size, alignment);
  }

  // The oldest, if the GPU has passed what was freed up to `epoch` and so also
  // this; null otherwise.
  Block* OldestUpTo(std::uint64_t epoch) const {
    return oldest_ != nullptr && oldest_->epoch <= epoch ? oldest_ : nullptr;
  }

  std::uint64_t open_epoch() const { return open_epoch_; }
  // Closes the open epoch: what is freed from now on has a later one.
  std::uint64_t Close() { return open_epoch_++; }
  // Whether something was freed that no point of `points` covers.
  bool NeedsPoint() const {
    return newest_ != nullptr &&
           (points.empty() || newest_->epoch > points.back().epoch);
  }

  // The points that the GPU has not been seen to pass, oldest first.
  std::vector<StreamPoint> points;
  // Its points are with somebody who asks the GPU.
  bool is_asked = false;
  // A block of it is lent to a segment that is to come, and may come back.
  bool is_lent = false;
  // This, while it is empty. Else the heap has it, among those that are not: so
  // that one that fills needs no memory.
  std::list<Backlog*> entry{this};
  const std::list<Backlog*>::iterator place = entry.begin();

 private:
  const CUstream stream_;
  std::uint64_t open_epoch_;
  Block* oldest_ = nullptr;
  Block* newest_ = nullptr;
  SizeIndex by_size_;
};

}  // namespace vmm::pool

#endif  // VMMSHARE_VMM_POOL_INTERNAL_BACKLOG_H_
