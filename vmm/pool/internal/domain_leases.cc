// Who holds the blocks of a domain, and asking for them.
#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "platform/os/coarse_clock.h"
#include "vmm/pool/internal/domain.h"
#include "vmm/pool/internal/share_layout.h"
#include "vmm/share/internal/lease_text.h"

namespace vmm::pool {

std::vector<Lease> Domain::LeasesOf(std::uint32_t slot,
                                    std::uint64_t size) const {
  std::vector<Lease> leases;
  const absl::Time now = absl::Now();
  const auto recalled = recalled_.find(slot);
  for (const Peer& peer : peers_) {
    const std::uint32_t word = HoldOf(peer, slot);
    if (word == 0) continue;
    Lease& lease = leases.emplace_back();
    lease.holder = peer.credentials;
    lease.size = size;
    // The peer wrote it: it may say anything.
    const auto held_for =
        static_cast<std::int64_t>(HeldForMs(word, platform::CoarseNow()));
    lease.since = std::max(peer.joined, now - absl::Milliseconds(held_for));
    if (recalled != recalled_.end()) lease.return_by = recalled->second;
    lease_internal::SetState(lease, peer.left, peer.end, peer.watch);
  }
  return leases;
}

std::vector<RecallBlocks> Domain::RecallsNow(
    absl::Span<const RecalledSlot> blocks) const {
  std::vector<RecallBlocks> recalls;
  while (!blocks.empty()) {
    const absl::Span<const RecalledSlot> some = blocks.subspan(0, kMaxRecalled);
    // All were asked for at once, or by now for the earliest of their times.
    absl::Time until = absl::InfiniteFuture();
    for (const RecalledSlot& block : some) {
      const auto found = recalled_.find(block.slot);
      if (found != recalled_.end()) until = std::min(until, found->second);
    }
    recalls.push_back({until - absl::Now(), {some.begin(), some.end()}});
    blocks.remove_prefix(some.size());
  }
  return recalls;
}

void Domain::Recall(absl::Span<const RecalledSlot> blocks, absl::Time until,
                    absl::Status* error) {
  for (const RecalledSlot& block : blocks) recalled_[block.slot] = until;
  for (Peer& peer : peers_) {
    if (peer.left) continue;
    std::vector<RecalledSlot> its;
    for (const RecalledSlot& block : blocks) {
      if (HoldOf(peer, block.slot) != 0) its.push_back(block);
    }
    if (its.empty()) continue;
    if (peer.channel == nullptr) {  // Not there yet, or disconnected for ever.
      peer.to_recall.insert(peer.to_recall.end(), its.begin(), its.end());
      continue;
    }
    for (RecallBlocks& recall : RecallsNow(its)) {
      if (peer.channel != nullptr) SendTo(peer, std::move(recall), error);
    }
  }
}

bool Domain::IsLeased(const SlotRef& block) const {
  return table_.has_value() && table_->IsInUse(block) &&
         std::any_of(peers_.begin(), peers_.end(), [&](const Peer& peer) {
           return HoldOf(peer, block.slot) != 0;
         });
}

}  // namespace vmm::pool
