// ShareTable: the owner's side of a sharing domain's control memory; internal.
//
// A block that is shared has a slot. Peers look it up in the share table, and
// say in a table of their own (one word a slot) that they hold it. Neither side
// sends the other anything for it.
//
// Why a block is never handed on while a peer uses it: the owner sets the
// slot's generation to 0 and then looks at the holds, both in sequentially
// consistent order; a peer sets its hold, and behind a sequentially consistent
// fence, one for all that it imports at once, it looks at the generation. So at
// least one of the two sees what the other did (Dekker's argument, as with
// hazard pointers). If the owner sees the hold, it waits until that is gone; if
// the peer sees the 0, it gives up.
//
// The words of peers are only compared with 0, and shown: a hostile peer can
// keep blocks from being used again and say since when it likes, no more.
#ifndef VMMSHARE_VMM_POOL_INTERNAL_SHARE_TABLE_H_
#define VMMSHARE_VMM_POOL_INTERNAL_SHARE_TABLE_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "platform/ipc/shared_memory.h"
#include "vmm/pool/internal/share_layout.h"
#include "vmm/pool/pool_ticket.h"

namespace vmm::pool {

struct SlotRef {
  std::uint32_t slot = 0;
  std::uint64_t generation = 0;
};

// Names a peer of one ShareTable; not used again for another.
enum class PeerId : std::uint64_t {};

// Move-only. Not synchronised: the caller's lock orders all calls, Held()
// among them. Only what peers do at the same time is taken care of here.
//
// The life of a slot: free, Publish(), Withdraw(), Held() until false,
// Recycle(), free. It is reused last in, first out.
class ShareTable {
 public:
  // Fails as SharedMemory::Create() does.
  static absl::StatusOr<ShareTable> Create(const DomainId& domain);

  const DomainId& domain() const { return domain_; }
  // To be sent to every peer. They can read it and no more.
  const platform::OsHandle& table_handle() const { return table_.handle(); }

  // Makes a block visible to peers: `size` bytes at `offset` of `segment`.
  // RESOURCE_EXHAUSTED when all kPoolSlots slots are taken.
  // REQUIRES: segment > 0, size > 0, offset + size within 64 bits.
  absl::StatusOr<SlotRef> Publish(std::uint32_t segment, std::uint64_t offset,
                                  std::uint64_t size);

  // Has the pages of the first kSlotsAhead slots be there; 0.3 ms. Thread-safe:
  // the one call that needs no lock.
  void PopulateAhead() const;

  // From when this returns, no ticket to the block is accepted any more. Peers
  // that hold it go on using it. REQUIRES: published.
  void Withdraw(std::uint32_t slot);
  // What Publish() gave the slot. REQUIRES: published or withdrawn.
  std::uint64_t GenerationOf(std::uint32_t slot) const;
  // Whether the slot is still, or was not yet recycled from, that Publish().
  bool IsInUse(const SlotRef& ref) const;

  // Whether a peer may still be using the block. A peer that tries a stale
  // ticket holds its slot for a moment, too. Once false it stays so.
  // REQUIRES: withdrawn.
  bool Held(std::uint32_t slot) const;

  // That peer's word for it: 0, or see HoldWord(). REQUIRES: published or
  // withdrawn; a peer.
  std::uint32_t HoldOf(std::uint32_t slot, PeerId peer) const;

  // The slot is free. REQUIRES: withdrawn, and Held() was false since.
  void Recycle(std::uint32_t slot);

  // Slots that are published, or withdrawn and not recycled.
  std::uint32_t slots_in_use() const {
    return static_cast<std::uint32_t>(slots_.size() - free_.size());
  }

  // A new peer, with a hold table that is empty. Fails as
  // SharedMemory::Create() does.
  absl::StatusOr<PeerId> AddPeer();
  // To be sent to that one peer, which can write it. REQUIRES: a peer.
  const platform::OsHandle& holds_handle(PeerId peer) const;
  // For tests: how many slots the peer holds, as it says. Looks at all that were
  // ever used. REQUIRES: a peer.
  std::uint32_t HoldsOf(PeerId peer) const;
  // Whether any peer holds any slot. Fast when one does, see HoldsOf() else.
  bool AnyHeld() const;
  // The peer's holds no longer count. REQUIRES: a peer, and that it cannot use
  // any block: its process has ended, or it never got segments.
  void RemovePeer(PeerId peer);

 private:
  enum class State : std::uint8_t { kFree, kPublished, kWithdrawn };
  struct Slot {
    std::uint64_t generation = 0;  // The last that it had.
    State state = State::kFree;
  };
  struct Peer {
    PeerId id;
    platform::SharedMemory memory;
    const Hold* holds;
  };

  ShareTable(const DomainId& domain, platform::SharedMemory table);
  ShareRecord& Record(std::uint32_t slot) const;
  const Peer& Find(PeerId peer) const;
  void CheckState(std::uint32_t slot, State expected, const char* call) const;

  DomainId domain_;
  platform::SharedMemory table_;
  std::uint64_t next_generation_ = 1;
  std::uint64_t next_peer_ = 1;
  std::vector<Slot> slots_;  // Those used so far.
  std::vector<std::uint32_t> free_;
  std::vector<Peer> peers_;
};

}  // namespace vmm::pool

#endif  // VMMSHARE_VMM_POOL_INTERNAL_SHARE_TABLE_H_
