#include "vmm/pool/internal/domain.h"

#include <algorithm>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "platform/base/annotate.h"
#include "platform/base/check.h"
#include "platform/base/status_macros.h"
#include "platform/os/machine.h"
#include "vmm/pool/internal/range.h"
#include "vmm/share/internal/peer_limits.h"
#include "vmm/share/internal/protocol.h"
#include "vmm/share/transfer.h"

namespace vmm::pool {
namespace {

// Subscribers that hung up without a goodbye and are not known to have ended.
constexpr PeerLimits kMaxLeft = {.all = 128, .of_user = 96, .of_process = 64};

// Segments that are on their way to one peer: it may not read, and the kernel
// allows the handles of all that this user sends to anybody together.
constexpr std::size_t kMaxOnTheirWay = platform::kMaxHandles;

}  // namespace

absl::Status Domain::MakeTable() {
  if (table_.has_value()) return absl::OkStatus();
  DomainId id;
  RETURN_IF_ERROR(platform::FillRandom(absl::MakeSpan(id.bytes)));
  ASSIGN_OR_RETURN(table_, ShareTable::Create(id));
  return absl::OkStatus();
}

absl::Status Domain::Publish(const Segment& segment, std::uint64_t offset,
                             std::uint64_t size, PoolTicket& out) {
  RETURN_IF_ERROR(MakeTable());
  ASSIGN_OR_RETURN(const SlotRef slot,
                   table_->Publish(segment.number, offset, size));
  out = {table_->domain(), segment.number, slot.slot,
         slot.generation,  offset,         size};
  return absl::OkStatus();
}

bool Domain::IsQuarantined(std::uint32_t slot) const {
  bool held = false;
  for (const Peer& peer : peers_) {
    if (peer.dead || table_->HoldOf(slot, peer.id) == 0) continue;
    if (!peer.left && peer.end == platform::PeerEnd::kNotEnded) return false;
    held = true;
  }
  return held;
}

absl::StatusOr<std::shared_ptr<SharedSegment>> Domain::Share(
    const Segment& segment) {
  ASSIGN_OR_RETURN(protocol::Outgoing outgoing,
                   protocol::MakeOutgoing(segment.allocation->shareable()));
  platform::Check(outgoing.ticket.layout.count() == 1,
                  "a segment of a pool has several chunks");
  ASSIGN_OR_RETURN(ExportedHandle handle, outgoing.handle(0));
  auto shared = std::make_shared<SharedSegment>();
  shared->number = segment.number;
  shared->ticket = std::move(outgoing.ticket);
  shared->handle = std::move(handle);
  if (segment.range != nullptr && segment.range->addresses() != nullptr) {
    shared->place = {segment.range->number(), segment.offset,
                     segment.range->size()};
  }
  return shared;
}

void Domain::AddShared(std::shared_ptr<const SharedSegment> shared) {
  const std::uint32_t number = shared->number;
  shared_.emplace(number, std::move(shared));
}

absl::Status Domain::Serve() {
  RETURN_IF_ERROR(MakeTable());
  served_ = true;
  return absl::OkStatus();
}

void Domain::StopSharing() {
  if (!served_) shared_.clear();
}

void Domain::Tell(Segment& segment, std::shared_ptr<SharedSegment> shared,
                  absl::Status* error) {
  if (!served_) return;
  platform::Check(shared != nullptr, "a segment of a served domain is secret");
  shared->number = segment.number;
  shared_.emplace(segment.number, shared);
  try {
    SendToAll(std::shared_ptr<const SharedSegment>(std::move(shared)), error);
  } catch (const std::bad_alloc&) {
    // Each one's session sends it what it was not.
    for (Peer& peer : peers_) {
      if (peer.channel != nullptr && peer.sent < segment.number) {
        LeaveToSession(peer);
      }
    }
  }
  segment.exposed = !peers_.empty();
}

void Domain::Forget(std::uint32_t number, absl::Status* error) {
  if (shared_.erase(number) == 0) return;
  for (Peer& peer : peers_) {
    const bool may_have_it = peer.sent >= number;
    if (peer.channel == nullptr && !peer.left && !peer.dead && may_have_it) {
      peer.to_forget.push_back(number);
    }
  }
  SendToAll(ForgetSegment{number}, error);
}

void Domain::Close() {
  absl::Status ignored;  // Nobody is left to be told.
  SendToAll(Closed(), &ignored);
  shared_.clear();
  closed_ = true;
}

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
      left.Check(kMaxLeft, "the pool's owner",
                 "subscribers that hung up without a goodbye and are not known "
                 "to have ended"),
      "", "Close a RemotePool or ImportedPool rather than its connection"));
  ASSIGN_OR_RETURN(const PeerId id, table_->AddPeer());
  peers_.push_back({id, std::move(credentials), absl::Now(), std::move(watch)});
  return id;
}

bool Domain::HasPeersThatLeft() const {
  return std::any_of(peers_.begin(), peers_.end(),
                     [](const Peer& one) { return one.left; });
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
  if (peer.dead) return missing;
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
  for (absl::Span<const RecalledSlot> left = peer.to_recall; !left.empty();
       left.remove_prefix(std::min(left.size(), kMaxRecalled))) {
    missing.emplace_back(RecallNow(left.subspan(0, kMaxRecalled)));
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
  if (!said_goodbye && !peer.dead) return;
  if (!peer.dead) table_->RemovePeer(id);
  std::erase_if(peers_, [id](const Peer& one) { return one.id == id; });
}

void Domain::ForgetDeadPeers() {
  for (Peer& peer : peers_) {
    if (peer.dead) continue;
    peer.end = peer.watch.Look();
    if (peer.end != platform::PeerEnd::kProven) continue;
    table_->RemovePeer(peer.id);
    peer.dead = true;
    peer.channel = nullptr;
  }
  // The session of one that has not left goes on, and calls Leave().
  std::erase_if(peers_, [](const Peer& one) { return one.dead && one.left; });
}

std::size_t Domain::connected_peers() const {
  return static_cast<std::size_t>(
      std::count_if(peers_.begin(), peers_.end(), [](const Peer& peer) {
        return !peer.left && peer.end == platform::PeerEnd::kNotEnded;
      }));
}

}  // namespace vmm::pool
