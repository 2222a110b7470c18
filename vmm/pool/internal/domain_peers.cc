// The peers of a domain: they join, are sent what they are to know, and leave.
#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "platform/base/annotate.h"
#include "platform/base/check.h"
#include "platform/base/status_macros.h"
#include "vmm/pool/internal/domain.h"
#include "vmm/share/internal/peer_limits.h"

namespace vmm::pool {
namespace {

// Subscribers that hung up without a goodbye and are not known to have ended.
constexpr PeerLimits kMaxLeft = {.all = 128, .of_user = 96, .of_process = 64};

// Segments that are on their way to one peer: it may not read, and the kernel
// allows the handles of all that this user sends to anybody together.
constexpr std::size_t kMaxOnTheirWay = platform::kMaxHandles;

}  // namespace

void Domain::SendToAll(const Notice& notice, absl::Status* error) {
  for (Peer& peer : peers_) {
    if (peer.channel != nullptr) SendTo(peer, notice, error);
  }
}

absl::Status SubscriberLost(const absl::Status& why) {
  return platform::Annotate(
      why, "a subscriber was disconnected",
      "It has ended, or does not read what it is sent and can subscribe again");
}

bool Domain::HasRoom(Peer& peer, const platform::Channel& channel) {
  if (peer.on_their_way < kMaxOnTheirWay) return true;
  if (!channel.WaitUntilReceived(absl::InfinitePast()).ok()) return false;
  peer.on_their_way = 0;
  return true;
}

bool Domain::Lags(PeerId id, const platform::Channel& channel) {
  return !HasRoom(Find(id), channel);
}

void Domain::LeaveToSession(Peer& peer) {
  peer.channel = nullptr;
  peer.lags->Notify();
}

void Domain::SendTo(Peer& peer, const Notice& notice, absl::Status* error) {
  const auto* segment =
      std::get_if<std::shared_ptr<const SharedSegment>>(&notice);
  // Who allocates does not wait for a peer: what does not fit into the channel
  // at once ends the connection. A segment that may not be on its way yet is
  // sent by the peer's session, with all that comes after it.
  if (segment != nullptr && !HasRoom(peer, *peer.channel)) {
    LeaveToSession(peer);
    return;
  }
  absl::Status sent = SendNotice(*peer.channel, notice, absl::InfinitePast());
  if (sent.ok()) {
    if (segment == nullptr) return;
    peer.sent = (*segment)->number;
    ++peer.on_their_way;
    return;
  }
  if (peer.channel->is_open()) {
    LeaveToSession(peer);
    return;
  }
  *error = SubscriberLost(sent);
  peer.channel = nullptr;
}

absl::StatusOr<PeerId> Domain::Join(platform::PeerCredentials credentials,
                                    platform::PeerWatch watch) {
  if (closed_) {
    return absl::NotFoundError("the pool has ended");
  }
  // Each keeps two descriptors and a hold table from being given back, for as
  // long as it likes.
  PeerTally left(credentials);
  for (const Peer& one : peers_) {
    if (one.left) left.Count(one.credentials);
  }
  RETURN_IF_ERROR(platform::Annotate(
      left.Check(kMaxLeft, "the pool's owner", "lost subscriptions"), "",
      "Each hung up without a goodbye, as one whose open failed may, and its "
      "process is not known to have ended: end that process"));
  ASSIGN_OR_RETURN(const PeerId id, table_->AddPeer());
  peers_.push_back({id, std::move(credentials), absl::Now(), std::move(watch)});
  return id;
}

absl::StatusOr<Welcome> Domain::WelcomeFor(PeerId peer) const {
  ASSIGN_OR_RETURN(platform::OsHandle table,
                   platform::Duplicate(table_->table_handle()));
  ASSIGN_OR_RETURN(platform::OsHandle holds,
                   platform::Duplicate(table_->holds_handle(peer)));
  return Welcome{std::move(table), std::move(holds)};
}

std::vector<Notice> Domain::Missing(PeerId id, platform::Channel* channel,
                                    const platform::CancelEvent* lags) {
  Peer& peer = Find(id);
  std::vector<Notice> missing;
  if (peer.is_dead()) return missing;
  for (std::uint32_t number : std::exchange(peer.to_forget, {})) {
    missing.emplace_back(ForgetSegment{number});
  }
  for (auto next = shared_.upper_bound(peer.sent); next != shared_.end();
       ++next) {
    if (missing.size() >= kMaxOnTheirWay) return missing;
    missing.emplace_back(next->second);
    peer.sent = next->first;
    peer.on_their_way = missing.size();
  }
  for (RecallBlocks& recall : RecallsNow(peer.to_recall)) {
    missing.emplace_back(std::move(recall));
  }
  peer.to_recall.clear();
  if (!missing.empty()) return missing;
  // Those who come while it ends are told, too.
  if (closed_ && !std::exchange(peer.told_closed, true)) {
    missing.emplace_back(Closed());
  } else {
    peer.channel = channel;
    peer.lags = lags;
  }
  return missing;
}

Domain::Peer& Domain::Find(PeerId id) {
  const auto found =
      std::find_if(peers_.begin(), peers_.end(),
                   [id](const Peer& peer) { return peer.id == id; });
  platform::Check(found != peers_.end(), "no such peer of a pool");
  return *found;
}

void Domain::Leave(PeerId id, bool said_goodbye) {
  Peer& peer = Find(id);
  peer.channel = nullptr;
  peer.left = true;
  if (!said_goodbye && !peer.is_dead()) return;
  if (!peer.is_dead()) table_->RemovePeer(id);
  std::erase_if(peers_, [id](const Peer& one) { return one.id == id; });
}

void Domain::ForgetDeadPeers() {
  for (Peer& peer : peers_) {
    if (peer.is_dead()) continue;
    peer.end = peer.watch.Look();
    if (!peer.is_dead()) continue;
    table_->RemovePeer(peer.id);
    peer.channel = nullptr;
  }
  // The session of one that has not left goes on, and calls Leave().
  std::erase_if(peers_,
                [](const Peer& one) { return one.is_dead() && one.left; });
}

bool Domain::HasPeersThatLeft() const {
  return std::any_of(peers_.begin(), peers_.end(),
                     [](const Peer& one) { return one.left; });
}

std::size_t Domain::connected_peers() const {
  return static_cast<std::size_t>(
      std::count_if(peers_.begin(), peers_.end(), [](const Peer& peer) {
        return !peer.left && peer.end == platform::PeerEnd::kNotEnded;
      }));
}

}  // namespace vmm::pool
