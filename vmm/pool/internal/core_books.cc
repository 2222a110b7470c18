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
  for (const Block* block = held_.front(); block != nullptr;
       block = block->next) {
    // Given back, it waits for its stream as what is in a backlog does.
    (IsGivenBack(*block) ? all.pending : all.held) += block->size;
    if (domains_[block->domain]->IsQuarantined(block->slot)) {
      all.quarantined += block->size;
    }
  }
  all.pending += late_.bytes();
  std::uint64_t taken = 0;
  for (const std::unique_ptr<Heap>& heap : heaps_) {
    all.pending += heap->bytes_waiting();
    for (const std::unique_ptr<Range>& range : heap->ranges()) {
      all.free += range->free();
      taken += range->taken();
      const std::vector<Range::Room> rooms = range->Rooms();
      for (std::size_t i = 0; i < rooms.size(); ++i) {
        const Segment& segment = *range->segments()[i];
        all.reserved += segment.size;
        all.segments.push_back({segment.size, segment.size - rooms[i].free,
                                rooms[i].largest, SharingDomain{segment.domain},
                                segment.exposed, segment.allocation->kinds()});
      }
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
      heap->ForEachSegment([&disclosed](const Segment& segment) {
        const AddressSpan span = segment.allocation->disclosed();
        if (span.size != 0) disclosed.push_back(span);
      });
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
  absl::Status refusal;
  for (const std::unique_ptr<Heap>& heap : heaps_) {
    heap->ForEachSegment([&](const Segment& segment) {
      is_empty = false;
      refusal.Update(segment.allocation->rdma_refusal());
    });
  }
  RETURN_IF_ERROR(refusal);
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
