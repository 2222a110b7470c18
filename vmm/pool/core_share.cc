// Tickets of a pool's blocks, and the sessions of its peers.
#include <array>
#include <cstddef>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "vmm/pool/core.h"
#include "vmm/pool/share_layout.h"
#include "vmm/protocol.h"

namespace vmm::pool {

absl::StatusOr<PoolTicket> Core::ExportOne(Block* block, CUdeviceptr address) {
  if (block == nullptr) return absl::NotFoundError("");
  // A Free() of the same block waits for a moment; it is the program's error,
  // but must not leave a ticket to a block that somebody else gets.
  BlockState live = BlockState::kLive;
  if (!block->state.compare_exchange_strong(live, BlockState::kSharing,
                                            std::memory_order_acq_rel)) {
    return absl::NotFoundError("");
  }
  Domain& domain = *domains_[block->domain];
  const Segment& segment = *block->segment;
  const std::uint64_t offset = address - segment.base();
  const std::uint32_t slot = block->slot.load(std::memory_order_relaxed);
  absl::StatusOr<PoolTicket> ticket =
      slot != Block::kNoSlot
          ? PoolTicket{domain.id(), segment.number,
                       slot,        domain.GenerationOf(slot),
                       offset,      block->requested}
          : domain.Publish(segment, offset, block->requested);
  if (ticket.ok()) {
    block->slot.store(ticket->slot, std::memory_order_relaxed);
  }
  block->state.store(BlockState::kLive, std::memory_order_release);
  return ticket;
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
    absl::Status exported = ExportSome(some, out);
    if (!exported.ok()) return exported;
    blocks.remove_prefix(some.size());
    out += some.size();
  }
  return absl::OkStatus();
}

absl::Status Core::ExportSome(absl::Span<const CUdeviceptr> blocks,
                              PoolTicket* out) {
  std::array<Block*, kBlocksAtOnce> found;
  std::unique_lock<std::mutex> lock(mutex_);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    found[i] = addresses_.Find(blocks[i]);
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (found[i] != nullptr) found[i]->state.load(std::memory_order_relaxed);
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    absl::StatusOr<PoolTicket> ticket = ExportOne(found[i], blocks[i]);
    if (absl::IsNotFound(ticket.status())) {
      lock.unlock();
      return WhyNotFree(blocks[i]);
    }
    if (!ticket.ok()) return ticket.status();
    out[i] = *ticket;
  }
  return absl::OkStatus();
}

absl::StatusOr<DomainId> Core::Serve(SharingDomain domain) {
  if (options_.sharing.kinds().empty()) {
    return absl::FailedPreconditionError(
        "the pool was created private, so that nobody can be given its memory; "
        "set PoolOptions::sharing");
  }
  std::lock_guard<std::mutex> lock(mutex_);
  absl::Status known = CheckDomain(domain);
  if (!known.ok()) return known;
  const auto number = static_cast<std::uint32_t>(domain);
  absl::Status served = domains_[number]->Serve(segments_, number);
  if (!served.ok()) return served;
  return domains_[number]->id();
}

absl::StatusOr<Domain*> Core::FindServed(const DomainId& id) {
  for (const std::unique_ptr<Domain>& domain : domains_) {
    if (domain->is_served() && domain->id() == id) return domain.get();
  }
  return absl::NotFoundError("the pool serves no such sharing domain");
}

absl::Status Core::ServePeer(const DomainId& id, platform::Channel& channel,
                             absl::Duration timeout,
                             const platform::CancelEvent& cancel) {
  absl::StatusOr<std::optional<platform::Process>> process =
      lease_internal::OpenHolder(channel);
  Domain* domain = nullptr;
  std::optional<PeerId> peer;
  absl::StatusOr<Welcome> welcome = [&]() -> absl::StatusOr<Welcome> {
    if (!process.ok()) return process.status();
    std::lock_guard<std::mutex> lock(mutex_);
    absl::StatusOr<Domain*> found = FindServed(id);
    if (!found.ok()) return found.status();
    domain = *found;
    domain->ForgetDeadPeers(&last_error_);
    absl::StatusOr<PeerId> joined =
        domain->Join(channel.peer(), *std::move(process));
    if (!joined.ok()) return joined.status();
    peer = *joined;
    for (const std::unique_ptr<Segment>& segment : segments_) {
      if (domains_[segment->domain].get() == domain) segment->exposed = true;
    }
    return domain->WelcomeFor(*peer);
  }();
  if (!peer.has_value()) {
    protocol::SendError(channel, protocol::kAbort, welcome.status(),
                        absl::Now() + timeout)
        .IgnoreError();  // The hang-up tells it otherwise.
    return welcome.status();
  }
  const bool was_welcome = welcome.ok();
  absl::Status ended = welcome.status();
  if (ended.ok()) {
    ended = SendWelcome(channel, *welcome, absl::Now() + timeout);
    welcome = absl::CancelledError();  // Closes the handles.
  }
  if (ended.ok()) ended = SendMissing(*domain, *peer, channel, timeout);
  bool said_goodbye = !was_welcome;  // Or it was never told of anything.
  if (ended.ok()) {
    absl::StatusOr<platform::Message> word =
        channel.Receive(absl::InfiniteFuture(), &cancel);
    said_goodbye = word.ok() && IsBye(*word);
    ended = word.ok() && !said_goodbye
                ? absl::DataLossError(absl::StrCat(
                      "a subscriber sent a message of type 0x",
                      absl::Hex(word->type), " where only a goodbye may come"))
                : word.status();
  }
  std::lock_guard<std::mutex> lock(mutex_);
  domain->Leave(*peer, said_goodbye);
  returned_.notify_all();
  return ended;
}

absl::Status Core::SendMissing(Domain& domain, PeerId peer,
                               platform::Channel& channel,
                               absl::Duration timeout) {
  for (;;) {
    std::vector<Notice> missing;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      missing = domain.Missing(peer, &channel);
    }
    if (missing.empty()) return absl::OkStatus();
    for (const Notice& notice : missing) {
      absl::Status sent = SendNotice(channel, notice, absl::Now() + timeout);
      if (!sent.ok()) return sent;
    }
  }
}

void Core::Close() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (std::exchange(closed_, true)) return;
  for (const std::unique_ptr<Domain>& domain : domains_) domain->Close();
  held_.clear();
  arenas_.clear();
  segments_.clear();
}

}  // namespace vmm::pool
