// What a pool says of itself, and whether it is true.
#include <memory>
#include <string>
#include <vector>

#include "platform/base/status_macros.h"
#include "vmm/memory/driver_block.h"
#include "vmm/pool/internal/core.h"

namespace vmm::pool {

PoolStatistics Core::statistics() {
  platform::MutexLock lock(mutex_);
  CollectHeld();
  PoolStatistics all;
  caches_.ForEach([&all](const ThreadCache& cache) {
    all.cached += cache.blocks.bytes();
    all.requested += cache.requested;
    all.allocations += cache.allocations;
    all.frees += cache.frees;
  });
  all.live_blocks = all.allocations - all.frees;
  all.cached += recent_.bytes();
  for (const Block* block : held_) {
    all.held += block->size;
    if (domains_[block->domain]->IsQuarantined(block->slot)) {
      all.quarantined += block->size;
    }
  }
  std::uint64_t taken = 0;
  for (const std::unique_ptr<Heap>& heap : heaps_) {
    all.pending += heap->bytes_waiting();
    for (const std::unique_ptr<Segment>& segment : heap->segments()) {
      all.reserved += segment->size();
      all.free += segment->heap.free_bytes();
      taken += segment->heap.live_bytes();
      all.segments.push_back({segment->size(), segment->heap.live_bytes(),
                              segment->heap.largest_free(),
                              SharingDomain{segment->domain}, segment->exposed,
                              segment->allocation->kinds()});
    }
  }
  all.live = taken - all.cached - all.pending - all.held;
  all.waste = all.reserved == 0
                  ? 0
                  : static_cast<double>(all.reserved - all.requested) /
                        static_cast<double>(all.reserved);
  for (const std::unique_ptr<Domain>& domain : domains_) {
    all.tickets += domain->tickets();
    all.peers += domain->connected_peers();
  }
  all.last_error = last_error_;
  return all;
}

std::string Core::weakness() {
  std::vector<AddressSpan> disclosed;
  {
    const platform::MutexLock lock(mutex_);
    for (const std::unique_ptr<Heap>& heap : heaps_) {
      for (const std::unique_ptr<Segment>& segment : heap->segments()) {
        const AddressSpan span = segment->allocation->disclosed();
        if (span.size != 0) disclosed.push_back(span);
      }
    }
  }
  return DescribeWeakness(HandleKind::kLegacyIpc, disclosed);
}

absl::Status Core::rdma_refusal() {
  if (options_.rdma == Rdma::kOff) {
    return absl::FailedPreconditionError(
        "the pool was made without the RDMA flag. Set PoolOptions::rdma to "
        "Rdma::kTry or kRequire (in Python rdma=\"try\")");
  }
  const platform::MutexLock lock(mutex_);
  bool is_empty = true;
  for (const std::unique_ptr<Heap>& heap : heaps_) {
    for (const std::unique_ptr<Segment>& segment : heap->segments()) {
      is_empty = false;
      RETURN_IF_ERROR(segment->allocation->rdma_refusal());
    }
  }
  return is_empty ? absl::FailedPreconditionError(
                        "the pool has no memory yet, so nothing is known of "
                        "it. Allocate or Reserve() first")
                  : absl::OkStatus();
}

absl::Status Core::CheckInvariants() {
  const platform::MutexLock lock(mutex_);
  for (const std::unique_ptr<Heap>& heap : heaps_) {
    RETURN_IF_ERROR(heap->CheckInvariants());
  }
  return absl::OkStatus();
}

}  // namespace vmm::pool
