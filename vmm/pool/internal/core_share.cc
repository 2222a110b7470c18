// Tickets of a pool's blocks, and the sessions of its peers.
#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"
#include "vmm/pool/internal/core.h"
#include "vmm/pool/internal/share_layout.h"
#include "vmm/share/internal/protocol.h"

namespace vmm::pool {
namespace {

// How often it is looked whether a subscriber has ended, whose connection
// somebody else may have, or lags behind.
constexpr absl::Duration kLookAtPeer = absl::Seconds(1);

}  // namespace

absl::Status Core::PublishOne(Block& block, PoolTicket& out) {
  Domain& domain = *domains_[block.domain];
  const Segment& segment = *block.segment;
  const std::uint64_t offset = BlockBook::OffsetOf(block);
  const std::uint32_t slot = block.slot.load(std::memory_order_relaxed);
  if (slot != Block::kNoSlot) {
    out = {domain.id(), segment.number, slot, domain.GenerationOf(slot),
           offset,      block.requested};
    return absl::OkStatus();
  }
  absl::Status published =
      domain.Publish(segment, offset, block.requested, out);
  if (absl::IsResourceExhausted(published) && !held_.empty()) {
    // Freed blocks keep their slots until it is seen that peers have let go.
    CollectHeld();
    published = domain.Publish(segment, offset, block.requested, out);
  }
  RETURN_IF_ERROR(published);
  block.slot.store(out.slot, std::memory_order_relaxed);
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
        "pool "
        "lives");
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

absl::StatusOr<Domain*> Core::FindServed(const DomainId& id) {
  for (const std::unique_ptr<Domain>& domain : domains_) {
    if (domain->is_served() && domain->id() == id) return domain.get();
  }
  return absl::NotFoundError("the pool serves no such sharing domain");
}

absl::Status Core::ServePeer(const DomainId& id, platform::Channel& channel,
                             platform::PeerWatch watch, absl::Duration timeout,
                             const platform::CancelEvent& cancel) {
  Domain* domain = nullptr;
  std::optional<PeerId> peer;
  std::optional<platform::CancelEvent> lags;  // Until the domain forgets it.
  absl::StatusOr<Welcome> welcome = [&]() -> absl::StatusOr<Welcome> {
    ASSIGN_OR_RETURN(lags, platform::CancelEvent::CreateUnder(cancel));
    platform::MutexLock lock(mutex_);
    ASSIGN_OR_RETURN(domain, FindServed(id));
    domain->ForgetDeadPeers();
    ASSIGN_OR_RETURN(peer, domain->Join(channel.peer(), std::move(watch)));
    for (std::size_t i = 0; i < domains_.size(); ++i) {
      if (domains_[i].get() != domain) continue;
      heaps_[i]->ForEachSegment([](Segment& one) { one.exposed = true; });
    }
    return domain->WelcomeFor(*peer);
  }();
  if (!welcome.ok()) {
    protocol::SendError(channel, protocol::kAbort, welcome.status(),
                        Deadline::In(timeout))
        .IgnoreError();  // The hang-up tells it otherwise.
    if (!peer.has_value()) return welcome.status();
  }
  bool was_welcome = welcome.ok();
  absl::Status ended = welcome.status();
  if (ended.ok()) {
    ended = SendWelcome(channel, *welcome, Deadline::In(timeout));
    was_welcome = ended.ok() || platform::kHangingUpMayLoseHandles;
    welcome = absl::CancelledError();  // Closes the handles.
  }
  if (ended.ok()) {
    ended = Attend(*domain, *peer, channel, timeout, *lags, cancel);
  }
  // Or it was never told of anything.
  const bool said_goodbye = ended.ok() || !was_welcome;
  platform::MutexLock lock(mutex_);
  if (absl::IsDeadlineExceeded(ended)) {
    last_error_ = SubscriberLost(ended);
  }
  domain->Leave(*peer, said_goodbye);
  returned_.NotifyAll();
  return ended;
}

bool Core::Tidy(const DomainId& id) {
  platform::MutexLock lock(mutex_);
  const absl::StatusOr<Domain*> domain = FindServed(id);
  if (!domain.ok()) return false;
  (*domain)->ForgetDeadPeers();
  returned_.NotifyAll();
  return (*domain)->HasPeersThatLeft();
}

absl::Status Core::Attend(Domain& domain, PeerId peer,
                          platform::Channel& channel, absl::Duration timeout,
                          const platform::CancelEvent& lags,
                          const platform::CancelEvent& cancel) {
  std::optional<Deadline> drop_at;  // While it lags behind.
  bool is_ahead = false;
  for (;;) {
    // Before it is looked at what is missing: what comes later is not lost.
    lags.Reset();
    absl::Status sent =
        SendMissing(domain, peer, channel, timeout, lags, cancel);
    // One that has hung up may have said goodbye before.
    if (!sent.ok() && !absl::IsUnavailable(sent)) return sent;
    if (!std::exchange(is_ahead, true)) domain.PopulateAhead();
    const absl::StatusOr<platform::Message> word =
        channel.Receive(Deadline::In(kLookAtPeer), &lags);
    if (absl::IsCancelled(word.status()) && !cancel.IsNotified()) continue;
    if (word.ok() && IsBye(*word)) return absl::OkStatus();
    if (word.ok()) {
      return absl::DataLossError(absl::StrCat(
          "a subscriber sent a message of type 0x", absl::Hex(word->type),
          " where only a goodbye may come"));
    }
    if (!absl::IsDeadlineExceeded(word.status())) return word.status();
    platform::MutexLock lock(mutex_);
    domain.ForgetDeadPeers();
    // Somebody else may have its connection, and has nothing by it.
    if (domain.IsDead(peer)) {
      return absl::UnavailableError("the subscriber has ended");
    }
    if (!domain.Lags(peer, channel)) {
      drop_at.reset();
    } else if (!drop_at.has_value()) {
      drop_at = Deadline::In(timeout);
    } else if (drop_at->Passed()) {
      return absl::DeadlineExceededError(
          absl::StrCat("a subscriber has not received segments for ",
                       absl::FormatDuration(timeout)));
    }
  }
}

absl::Status Core::SendMissing(Domain& domain, PeerId peer,
                               platform::Channel& channel,
                               absl::Duration timeout,
                               const platform::CancelEvent& lags,
                               const platform::CancelEvent& cancel) {
  for (;;) {
    std::vector<Notice> missing;
    {
      platform::MutexLock lock(mutex_);
      missing = domain.Missing(peer, &channel, &lags);
    }
    if (missing.empty()) return absl::OkStatus();
    const absl::Status received =
        channel.WaitUntilReceived(Deadline::In(timeout), &cancel);
    // One that has hung up may have said goodbye before.
    if (absl::IsUnavailable(received)) return absl::OkStatus();
    RETURN_IF_ERROR(received);
    for (const Notice& notice : missing) {
      RETURN_IF_ERROR(
          SendNotice(channel, notice, Deadline::In(timeout), &cancel));
    }
  }
}

void Core::Close() {
  const platform::MutexLock lock(mutex_);
  if (std::exchange(closed_, true)) return;
  // What others of the process have in their hands must not go under them.
  while (visitors_ != 0) changed_.Wait(mutex_);
  const RelaxedCapture relaxed(device_.driver());
  for (const std::unique_ptr<Domain>& domain : domains_) domain->Close();
  held_ = {};
  late_ = {};
  for (const std::unique_ptr<Heap>& heap : heaps_) heap->Clear();
}

}  // namespace vmm::pool
