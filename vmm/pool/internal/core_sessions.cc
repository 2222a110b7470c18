// The sessions of a pool's peers.
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"
#include "vmm/pool/internal/core.h"
#include "vmm/share/internal/protocol.h"

namespace vmm::pool {
namespace {

// How often it is looked whether a subscriber has ended, whose connection
// somebody else may have, or lags behind.
constexpr absl::Duration kLookAtPeer = absl::Seconds(1);

}  // namespace

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

}  // namespace vmm::pool
