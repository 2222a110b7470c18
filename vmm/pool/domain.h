// Domain: who may see a pool's memory: the tickets that are out, the segments
// that peers are given, and the peers; internal to vmm/.
#ifndef VMMSHARE_VMM_POOL_DOMAIN_H_
#define VMMSHARE_VMM_POOL_DOMAIN_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "platform/channel.h"
#include "platform/process.h"
#include "vmm/lease.h"
#include "vmm/pool/segment.h"
#include "vmm/pool/share_protocol.h"
#include "vmm/pool/share_table.h"
#include "vmm/pool_ticket.h"

namespace vmm::pool {

// Thread-compatible: under its core's mutex.
class Domain {
 public:
  std::uint32_t NextNumber() { return next_number_++; }

  // --- Tickets ---------------------------------------------------------------

  // A ticket for `size` bytes at `offset` of `segment`, in a slot of its own.
  absl::StatusOr<PoolTicket> Publish(const Segment& segment,
                                     std::uint64_t offset, std::uint64_t size);
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
  // Held by peers that hung up, and by no others.
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

  // From now on peers can join: `segments` are the domain's.
  absl::Status Serve(const std::vector<std::unique_ptr<Segment>>& segments,
                     std::uint32_t own_number);
  bool is_served() const { return served_; }
  // Gives the peers a new segment, if the domain is served. A peer that does
  // not read is disconnected, which is told in `error`.
  absl::Status Tell(Segment& segment, absl::Status* error);
  // Has the peers let go of a segment, by its number.
  void Forget(std::uint32_t number, absl::Status* error);
  // Ends: peers are told that nothing comes any more.
  void Close();

  // --- Peers -----------------------------------------------------------------

  // A peer joins: its hold table is made. `process` is empty when the system
  // cannot refer to it: then it is never known to have ended.
  // RESOURCE_EXHAUSTED when too many have left and live on.
  absl::StatusOr<PeerId> Join(platform::PeerCredentials credentials,
                              std::optional<platform::Process> process);
  // What the peer is to be sent first.
  absl::StatusOr<Welcome> WelcomeFor(PeerId peer) const;
  // What the peer was not sent yet: the caller sends it. When that is nothing,
  // `channel` is from now on what Tell() and Forget() send on.
  std::vector<Notice> Missing(PeerId peer, platform::Channel* channel);
  // The peer's channel is of no use any more. `said_goodbye`: it promised to
  // use no block again. Otherwise what it holds stays held until its process
  // has ended.
  void Leave(PeerId peer, bool said_goodbye);
  // Drops the holds of peers whose processes have ended.
  void ForgetDeadPeers(absl::Status* error);
  std::size_t connected_peers() const;

 private:
  struct Peer {
    PeerId id{};
    platform::PeerCredentials credentials;
    absl::Time joined;
    std::optional<platform::Process> process;
    platform::Channel* channel = nullptr;  // Once it has all segments.
    std::uint32_t sent = 0;  // The last segment's number. They only grow.
    std::vector<std::uint32_t> to_forget;  // Segments that went meanwhile.
    std::vector<RecalledSlot> to_recall;   // Blocks, until recalled_ says.
    bool told_closed = false;              // By Missing().
    bool left = false;
    // Its process has ended, and its holds are gone. The connection may stand
    // for longer: a forked child of the peer's has it, too.
    bool dead = false;
  };

  absl::Status MakeTable();
  absl::StatusOr<std::shared_ptr<const SharedSegment>> Share(Segment& segment);
  void SendToAll(const Notice& notice, absl::Status* error);
  void SendTo(Peer& peer, const Notice& notice, absl::Status* error);
  RecallBlocks RecallNow(absl::Span<const RecalledSlot> blocks) const;
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

#endif  // VMMSHARE_VMM_POOL_DOMAIN_H_
