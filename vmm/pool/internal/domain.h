// Domain: who may see a pool's memory: the tickets that are out, the segments
// that peers are given, and the peers; internal to vmm/.
#ifndef VMMSHARE_VMM_POOL_INTERNAL_DOMAIN_H_
#define VMMSHARE_VMM_POOL_INTERNAL_DOMAIN_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "platform/ipc/channel.h"
#include "platform/ipc/peer_watch.h"
#include "vmm/pool/internal/segment.h"
#include "vmm/pool/internal/share_protocol.h"
#include "vmm/pool/internal/share_table.h"
#include "vmm/pool/pool_ticket.h"
#include "vmm/share/lease.h"

namespace vmm::pool {

// What is remembered of one that was disconnected.
absl::Status SubscriberLost(const absl::Status& why);

// Thread-compatible: under its core's mutex.
class Domain {
 public:
  std::uint32_t NextNumber() { return next_number_++; }

  // --- Tickets ---------------------------------------------------------------

  // Gives `size` bytes at `offset` of `segment` a slot of their own.
  absl::StatusOr<SlotRef> Publish(const Segment& segment, std::uint64_t offset,
                                  std::uint64_t size);
  // See ShareTable; without the core's mutex. REQUIRES: a peer has joined.
  void PopulateAhead() const { table_->PopulateAhead(); }
  // The generation that Publish() gave to what has the slot now.
  std::uint64_t GenerationOf(std::uint32_t slot) const {
    return table_->GenerationOf(slot);
  }
  const DomainId& id() const { return table_->domain(); }
  void Withdraw(std::uint32_t slot) { table_->Withdraw(slot); }
  bool IsHeld(std::uint32_t slot) const { return table_->Held(slot); }
  void Recycle(std::uint32_t slot) {
    table_->Recycle(slot);
    recalled_.erase(slot);
  }
  // Held by peers that hung up or whose processes have ended, and by no others.
  bool IsQuarantined(std::uint32_t slot) const;
  std::uint64_t tickets() const {
    return table_.has_value() ? table_->slots_in_use() : 0;
  }

  // --- Leases (domain_leases.cc) ---------------------------------------------

  // Of a slot's block, one a holder; `size` bytes each.
  std::vector<Lease> LeasesOf(std::uint32_t slot, std::uint64_t size) const;
  // Asks those that hold the blocks now. As Tell() does, it disconnects a peer
  // that does not read.
  void Recall(absl::Span<const RecalledSlot> blocks, absl::Time until,
              absl::Status* error);
  // Whether anybody holds that block, which may have been freed since, or any.
  bool IsLeased(const SlotRef& block) const;
  bool IsAnyLeased() const { return table_.has_value() && table_->AnyHeld(); }

  // --- Segments that peers are given -----------------------------------------

  // What peers are given of a segment; its number is Tell()'s to say. A driver
  // call, which needs nothing of a domain.
  static absl::StatusOr<std::shared_ptr<SharedSegment>> Share(
      const Segment& segment);
  // One that is there before the domain is served.
  bool IsShared(const Segment& segment) const {
    return shared_.contains(segment.number);
  }
  void AddShared(std::shared_ptr<const SharedSegment> shared);
  // From now on peers can join. REQUIRES: all segments are shared.
  absl::Status Serve();
  bool is_served() const { return served_; }
  // What was shared to be served is so no more, unless it is served.
  void StopSharing();
  // Gives the peers a new segment. A peer that does not read is disconnected,
  // which is told in `error`. REQUIRES: `shared` if the domain is served.
  void Tell(Segment& segment, std::shared_ptr<SharedSegment> shared,
            absl::Status* error);
  // Has the peers let go of a segment, by its number.
  void Forget(std::uint32_t number, absl::Status* error);
  // Ends: peers are told that nothing comes any more.
  void Close();

  // --- Peers (domain_peers.cc) -----------------------------------------------

  // A peer joins: its hold table is made. RESOURCE_EXHAUSTED when too many have
  // left whose end is not proven.
  absl::StatusOr<PeerId> Join(platform::PeerCredentials credentials,
                              platform::PeerWatch watch);
  // What the peer is to be sent first.
  absl::StatusOr<Welcome> WelcomeFor(PeerId peer) const;
  // What the peer was not sent yet, or a part: the caller sends it once all
  // before is received. When that is nothing, `channel` is from now on what
  // Tell() and Forget() send on, until the peer lags behind: then `lags` is
  // notified, and the caller is to ask again.
  std::vector<Notice> Missing(PeerId peer, platform::Channel* channel,
                              const platform::CancelEvent* lags);
  // The peer's channel is of no use any more. `said_goodbye`: it promised to
  // use no block again. Otherwise what it holds stays held until its end is
  // proven.
  void Leave(PeerId peer, bool said_goodbye);
  // Drops the holds of peers whose end is proven.
  void ForgetDeadPeers();
  bool HasPeersThatLeft() const;
  bool IsDead(PeerId peer) { return Find(peer).is_dead(); }
  // Whether it has not received, over `channel`, as much as may be on its way.
  bool Lags(PeerId peer, const platform::Channel& channel);
  std::size_t connected_peers() const;
  // Whether any may have a segment open: until it said goodbye, or its end is
  // proven.
  bool has_peers() const { return !peers_.empty(); }

 private:
  struct Peer {
    PeerId id{};
    platform::PeerCredentials credentials;
    absl::Time joined;
    platform::PeerWatch watch;
    // When last asked. kProven: its holds are gone, and its session may go on for a
    // moment.
    platform::PeerEnd end = platform::PeerEnd::kNotEnded;
    platform::Channel* channel = nullptr;         // Once it has all segments.
    const platform::CancelEvent* lags = nullptr;  // With it.
    std::uint32_t sent = 0;        // The last segment's number. They only grow.
    std::size_t on_their_way = 0;  // Segments on `channel`, not received yet.
    std::vector<std::uint32_t> to_forget = {};  // Segments that went meanwhile.
    std::vector<RecalledSlot> to_recall = {};   // Blocks, until recalled_ says.
    bool told_closed = false;                   // By Missing().
    bool left = false;
    bool is_dead() const { return end == platform::PeerEnd::kProven; }
  };

  absl::Status MakeTable();
  void SendToAll(const Notice& notice, absl::Status* error);
  void SendTo(Peer& peer, const Notice& notice, absl::Status* error);
  // Its session sends it all that is left from now on.
  static void LeaveToSession(Peer& peer);
  static bool HasRoom(Peer& peer, const platform::Channel& channel);
  // What a peer is sent of these: as many of them at a time as a message has.
  std::vector<RecallBlocks> RecallsNow(
      absl::Span<const RecalledSlot> blocks) const;
  // The peer's word for the slot; 0 of one that is dead.
  std::uint32_t HoldOf(const Peer& peer, std::uint32_t slot) const {
    return peer.is_dead() ? 0 : table_->HoldOf(slot, peer.id);
  }
  Peer& Find(PeerId peer);

  std::uint32_t next_number_ = 1;
  bool served_ = false;
  bool closed_ = false;
  std::optional<ShareTable> table_;  // Once something is shared.
  std::map<std::uint32_t, std::shared_ptr<const SharedSegment>> shared_;
  std::vector<Peer> peers_;
  std::map<std::uint32_t, absl::Time> recalled_;  // Slots asked back: by when.
};

}  // namespace vmm::pool

#endif  // VMMSHARE_VMM_POOL_INTERNAL_DOMAIN_H_
