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

// What the thread of one has.
struct Core::Session {
  Domain& domain;
  PeerId peer;
  platform::Channel& channel;
  absl::Duration timeout;             // Of one message.
  const platform::CancelEvent& lags;  // As Domain::Missing() has it.
  const platform::CancelEvent& cancel;
};

absl::StatusOr<std::size_t> Core::FindServed(const DomainId& id) const {
  for (std::size_t i = 0; i < domains_.size(); ++i) {
    if (domains_[i]->is_served() && domains_[i]->id() == id) return i;
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
    ASSIGN_OR_RETURN(const std::size_t number, FindServed(id));
    domain = domains_[number].get();
    domain->ForgetDeadPeers();
    ASSIGN_OR_RETURN(peer, domain->Join(channel.peer(), std::move(watch)));
    heaps_[number]->ForEachSegment([](Segment& one) { one.exposed = true; });
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
    ended = Attend({*domain, *peer, channel, timeout, *lags, cancel});
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
  const absl::StatusOr<std::size_t> number = FindServed(id);
  if (!number.ok()) return false;
  domains_[*number]->ForgetDeadPeers();
  returned_.NotifyAll();
  return domains_[*number]->HasPeersThatLeft();
}

absl::Status Core::Attend(const Session& session) {
  std::optional<Deadline> drop_at;  // While it lags behind.
  bool is_ahead = false;
  for (;;) {
    // Before it is looked at what is missing: what comes later is not lost.
    session.lags.Reset();
    absl::Status sent = SendMissing(session);
    // One that has hung up may have said goodbye before.
    if (!sent.ok() && !absl::IsUnavailable(sent)) return sent;
    if (!std::exchange(is_ahead, true)) session.domain.PopulateAhead();
    const absl::StatusOr<platform::Message> word =
        session.channel.Receive(Deadline::In(kLookAtPeer), &session.lags);
    if (absl::IsCancelled(word.status()) && !session.cancel.IsNotified()) {
      continue;
    }
    if (word.ok() && IsBye(*word)) return absl::OkStatus();
    if (word.ok()) {
      return absl::DataLossError(absl::StrCat(
          "a subscriber sent a message of type 0x", absl::Hex(word->type),
          " where only a goodbye may come"));
    }
    if (!absl::IsDeadlineExceeded(word.status())) return word.status();
    platform::MutexLock lock(mutex_);
    session.domain.ForgetDeadPeers();
    // Somebody else may have its connection, and has nothing by it.
    if (session.domain.IsDead(session.peer)) {
      return absl::UnavailableError("the subscriber has ended");
    }
    if (!session.domain.Lags(session.peer, session.channel)) {
      drop_at.reset();
    } else if (!drop_at.has_value()) {
      drop_at = Deadline::In(session.timeout);
    } else if (drop_at->Passed()) {
      return absl::DeadlineExceededError(
          absl::StrCat("a subscriber has not received segments for ",
                       absl::FormatDuration(session.timeout)));
    }
  }
}

absl::Status Core::SendMissing(const Session& session) {
  for (;;) {
    std::vector<Notice> missing;
    {
      platform::MutexLock lock(mutex_);
      missing =
          session.domain.Missing(session.peer, &session.channel, &session.lags);
    }
    if (missing.empty()) return absl::OkStatus();
    RETURN_IF_ERROR(session.channel.WaitUntilReceived(
        Deadline::In(session.timeout), &session.cancel));
    for (const Notice& notice : missing) {
      RETURN_IF_ERROR(SendNotice(session.channel, notice,
                                 Deadline::In(session.timeout),
                                 &session.cancel));
    }
  }
}

}  // namespace vmm::pool
