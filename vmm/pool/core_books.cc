// What a pool says of itself, and whether it is true.
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "vmm/pool/core.h"

namespace vmm::pool {

PoolStatistics Core::statistics() {
  std::lock_guard<std::mutex> lock(mutex_);
  CollectHeld();
  PoolStatistics all;
  all.pending = pending_.bytes();
  caches_.ForEach([&all](const ThreadCache& cache) {
    all.cached += cache.blocks.bytes();
    all.requested += cache.requested;
    all.allocations += cache.allocations;
    all.frees += cache.frees;
  });
  all.live_blocks = all.allocations - all.frees;
  for (const std::unique_ptr<Arena>& arena : arenas_) {
    all.cached += arena->recent.bytes();
  }
  for (const Block* block : held_) {
    all.held += block->size;
    if (domains_[block->domain]->IsQuarantined(block->slot)) {
      all.quarantined += block->size;
    }
  }
  std::uint64_t taken = 0;
  for (const std::unique_ptr<Segment>& segment : segments_) {
    all.reserved += segment->size();
    all.free += segment->heap.free_bytes();
    taken += segment->heap.live_bytes();
    all.segments.push_back({segment->size(), segment->heap.live_bytes(),
                            segment->heap.largest_free(),
                            SharingDomain{segment->domain}, segment->exposed});
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

absl::Status Core::CheckInvariants() {
  std::lock_guard<std::mutex> lock(mutex_);
  // Every taken range of every heap is one record's, and found by its address.
  std::map<const Segment*, std::uint64_t> bytes;
  for (const Block& block : records_) {
    if (block.state.load(std::memory_order_acquire) == BlockState::kUnused) {
      continue;
    }
    const std::string what =
        absl::StrCat("the block at 0x", absl::Hex(block.address));
    if (addresses_.Find(block.address) != &block) {
      return absl::InternalError(
          absl::StrCat(what, " is not found by its address"));
    }
    const OffsetHeap& heap = block.segment->heap;
    if (!heap.is_live(block.node) ||
        heap.block(block.node).offset !=
            block.address - block.segment->base() ||
        heap.block(block.node).size != block.size) {
      return absl::InternalError(
          absl::StrCat(what, " is not what its heap says"));
    }
    if (block.domain != block.segment->domain) {
      return absl::InternalError(
          absl::StrCat(what, " is of another domain than its segment"));
    }
    bytes[block.segment] += block.size;
  }
  for (const std::unique_ptr<Segment>& segment : segments_) {
    absl::Status heap = segment->heap.CheckInvariants();
    if (!heap.ok()) return heap;
    if (bytes[segment.get()] != segment->heap.live_bytes()) {
      return absl::InternalError(absl::StrCat(
          "segment ", segment->number, " has ", segment->heap.live_bytes(),
          " bytes taken, of which its blocks know ", bytes[segment.get()]));
    }
  }
  for (const std::unique_ptr<Arena>& arena : arenas_) {
    for (const Segment* segment : arena->segments) {
      if (segment->arena != arena.get() || segment->domain != arena->domain) {
        return absl::InternalError(
            absl::StrCat("segment ", segment->number,
                         " is in an arena that is not its own"));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace vmm::pool
