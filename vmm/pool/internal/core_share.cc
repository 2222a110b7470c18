// Tickets of a pool's blocks, and the segments that peers are given.
#include <array>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "platform/base/status_macros.h"
#include "vmm/pool/internal/core.h"
#include "vmm/pool/internal/share_layout.h"

namespace vmm::pool {

absl::Status Core::PublishOne(Block& block, PoolTicket& out) {
  Domain& domain = *domains_[block.domain];
  const Segment& segment = *block.segment;
  const std::uint64_t offset = BlockBook::OffsetOf(block);
  SlotRef ref{.slot = block.slot.load(std::memory_order_relaxed)};
  if (ref.slot != Block::kNoSlot) {
    ref.generation = domain.GenerationOf(ref.slot);
  } else {
    absl::StatusOr<SlotRef> published =
        domain.Publish(segment, offset, block.requested);
    if (absl::IsResourceExhausted(published.status()) && !held_.empty()) {
      // Freed blocks keep their slots until it is seen that peers have let go.
      CollectHeld();
      published = domain.Publish(segment, offset, block.requested);
    }
    ASSIGN_OR_RETURN(ref, std::move(published));
    block.slot.store(ref.slot, std::memory_order_relaxed);
  }
  out = {domain.id(),    segment.number, ref.slot,
         ref.generation, offset,         block.requested};
  return absl::OkStatus();
}

absl::Status Core::Export(absl::Span<const CUdeviceptr> blocks,
                          PoolTicket* out) {
  if (options_.sharing.kinds().empty()) {
    return absl::FailedPreconditionError(
        "the pool was created private, so that its blocks cannot be exported; "
        "set PoolOptions::sharing");
  }
  while (!blocks.empty()) {
    const absl::Span<const CUdeviceptr> some = blocks.subspan(0, kBlocksAtOnce);
    RETURN_IF_ERROR(ExportSome(some, out));
    blocks.remove_prefix(some.size());
    out += some.size();
  }
  return absl::OkStatus();
}

absl::Status Core::ExportSome(absl::Span<const CUdeviceptr> blocks,
                              PoolTicket* out) {
  std::array<Block*, kBlocksAtOnce> found;
  platform::MutexLock lock(mutex_);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    found[i] = book_.Find(blocks[i]);
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (found[i] != nullptr) found[i]->state.load(std::memory_order_relaxed);
  }
  // All of them before the first is published: each claim waits until what was
  // written before it has arrived, and records come from peers' processors.
  std::size_t claimed = 0;
  while (claimed < blocks.size() && found[claimed] != nullptr &&
         found[claimed]->Claim()) {
    ++claimed;
  }
  const absl::Span<Block* const> ours(found.data(), claimed);
  // Whatever happens: Free() would wait for ever.
  absl::Cleanup unclaim = [ours] {
    for (Block* const block : ours) block->Unclaim();
  };
  if (claimed < blocks.size()) [[unlikely]] {
    std::move(unclaim).Invoke();
    lock.Unlock();
    return WhyNotFree(blocks[claimed]);
  }
  for (std::size_t i = 0; i < claimed; ++i) {
    RETURN_IF_ERROR(PublishOne(*ours[i], out[i]));
  }
  return absl::OkStatus();
}

absl::StatusOr<DomainId> Core::Serve(SharingDomain domain) {
  if (options_.sharing.kinds().empty()) {
    return absl::FailedPreconditionError(
        "the pool was created private, so that nobody can be given its memory; "
        "set PoolOptions::sharing");
  }
  const platform::MutexLock lock(mutex_);
  if (closed_) {
    return absl::FailedPreconditionError(
        "the pool of this sharing domain has ended; serve a domain while its "
        "pool lives");
  }
  RETURN_IF_ERROR(CheckDomain(domain));
  ++visitors_;
  const absl::Cleanup leave = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    --visitors_;
    changed_.NotifyAll();
  };
  RETURN_IF_ERROR(ShareWhole(static_cast<std::uint32_t>(domain)));
  return domains_[static_cast<std::uint32_t>(domain)]->id();
}

absl::Status Core::ShareWhole(std::uint32_t number) {
  Domain& served = *domains_[number];
  const absl::Cleanup stop = [&served] { served.StopSharing(); };
  while (!served.is_served()) {
    std::vector<Segment*> left;
    heaps_[number]->ForEachSegment([&](Segment& segment) {
      if (!served.IsShared(segment)) left.push_back(&segment);
    });
    RETURN_IF_ERROR(left.empty() ? served.Serve() : ShareAll(left));
  }
  return absl::OkStatus();
}

absl::Status Core::ShareAll(absl::Span<Segment* const> segments) {
  for (Segment* const segment : segments) ++segment->exporters;
  const absl::Cleanup exported = [segments] {
    for (Segment* const segment : segments) --segment->exporters;
  };
  std::vector<std::shared_ptr<const SharedSegment>> shared;
  {
    const Unlocked unlocked(*this);
    for (const Segment* const segment : segments) {
      ASSIGN_OR_RETURN(shared.emplace_back(), Domain::Share(*segment));
    }
  }
  Domain& domain = *domains_[segments.front()->domain];
  for (auto& one : shared) domain.AddShared(std::move(one));
  return absl::OkStatus();
}

}  // namespace vmm::pool
