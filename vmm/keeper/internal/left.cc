// Processes whose connections ended with locks, and how their end is looked for: see
// server.h.
#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "vmm/keeper/internal/server.h"

namespace vmm::keeper {
namespace {

// How often a session looks whether there is room among those that left.
constexpr absl::Duration kLookAgain = absl::Milliseconds(50);
// For how long, and how often, it then looks for the end of its process itself.
constexpr absl::Duration kLinger = absl::Seconds(1);
constexpr absl::Duration kLookSoon = absl::Milliseconds(5);

// What a client says at most once it asks for nothing more.
constexpr int kMostLastWords = 8;

}  // namespace

bool Server::HasSaidGoodbye(Session& session) {
  // A client that gave up said so behind the request that was served.
  for (int words = 0; !session.said_goodbye && words < kMostLastWords;
       ++words) {
    const absl::StatusOr<platform::Message> word =
        session.channel.Receive(absl::InfinitePast());
    if (!word.ok()) break;
    session.said_goodbye = word->type == kGoodbye && CheckSpeaker(session).ok();
  }
  return session.said_goodbye;
}

bool Server::LeaveLocks(Session& session, SessionServer::Session& connection) {
  session.channel.Close();  // Whoever is there asks over another one.
  if (!session.watch.has_value() || !session.watch->CanTell()) return false;
  const std::uint64_t id = session.client.session;
  HandedOver handed = HandedOver::kNot;
  for (bool first = true; handed == HandedOver::kNot; first = false) {
    if (!first) absl::SleepFor(kLookAgain);
    const platform::PeerEnd end = session.watch->Look();
    if (end == platform::PeerEnd::kProven) return false;
    const bool ended = end == platform::PeerEnd::kUnproven;
    platform::MutexLock lock(mutex_);
    const bool locks =
        registry_.LeaveLocked(id, ended ? session.watch->why() : "");
    if (first) NotifyWaiters();  // Of reservations that have gone.
    if (!locks || stop_asked_) return false;
    handed = HandOver(session, ended);
  }
  // A killed process has ended in a moment: nobody waits for the next Tidy().
  connection.is_counted = false;
  const Deadline linger = Deadline::In(
      handed == HandedOver::kToTidy ? kLinger : absl::ZeroDuration());
  while (!linger.Passed()) {
    absl::SleepFor(kLookSoon);
    Tidy();
    platform::MutexLock lock(mutex_);
    if (stop_asked_ ||
        std::none_of(left_.begin(), left_.end(), [id](const Left& one) {
          return one.client.session == id;
        })) {
      break;
    }
  }
  return true;
}

Server::HandedOver Server::HandOver(Session& session, bool ended) {
  const Client& client = session.client;
  for (Left& one : left_) {
    const bool is_same = !ended && IsSameProcess(one.client, client);
    // Still: another one may have its id by now.
    if (!is_same || one.watch.Look() != platform::PeerEnd::kNotEnded) continue;
    registry_.PassLocks(client.session, one.client.session);
    return HandedOver::kToAnother;
  }
  if (left_.size() >= kMostLeft) return HandedOver::kNot;
  left_.push_back({client, *std::move(session.watch)});
  return HandedOver::kToTidy;
}

bool Server::Tidy() {
  platform::MutexLock lock(mutex_);
  LookAtLeft(nullptr);
  return !left_.empty();
}

void Server::LookAtLeft(const Client* of) {
  bool changed = false;
  left_.remove_if([&](Left& one) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (of != nullptr &&
        (one.client.pid != of->pid || one.client.user != of->user)) {
      return false;
    }
    const platform::PeerEnd end = one.watch.Look();
    if (end == platform::PeerEnd::kProven) {
      changed |= registry_.EndSession(one.client.session);
      return true;
    }
    const bool ended = end == platform::PeerEnd::kUnproven;
    return !registry_.LeaveLocked(one.client.session,
                                  ended ? one.watch.why() : "");
  });
  if (changed) NotifyWaiters();
}

}  // namespace vmm::keeper
