// SharedTableView: a peer's side of a sharing domain's control memory;
// internal.
//
// Acquire() is what an import of a block costs: a store and a few loads, no
// call of the system or of the driver. share_table.h says why it is safe.
#ifndef VMMSHARE_VMM_POOL_INTERNAL_SHARED_TABLE_VIEW_H_
#define VMMSHARE_VMM_POOL_INTERNAL_SHARED_TABLE_VIEW_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "platform/ipc/shared_memory.h"
#include "platform/os/coarse_clock.h"
#include "platform/os/os_handle.h"
#include "platform/os/zeroed_pages.h"
#include "vmm/pool/internal/share_layout.h"
#include "vmm/pool/pool_ticket.h"

namespace vmm::pool {

// Thread-safe: each slot has a lock of its own, held for a few loads and
// stores, so that a last Release() and an Acquire() of one slot cannot cross.
//
// It does not give back what is held when it goes: blocks may be in use by
// then. What was not released stays held until this process has ended.
//
// fork: the counts are copied and the holds are not, so a child must not call
// anything here: its Release() would take a hold from under its parent.
class SharedTableView {
 public:
  // Opens the two memories that the owner sent. The handles stay the caller's
  // and are not needed afterwards. INVALID_ARGUMENT when either is not such a
  // memory, or the table is not one of `domain`; UNIMPLEMENTED when it is of a
  // newer version. One view a hold table: counts are kept in the view.
  static absl::StatusOr<std::unique_ptr<SharedTableView>> Open(
      const platform::OsHandle& table, const platform::OsHandle& holds,
      const DomainId& domain);

  SharedTableView(const SharedTableView&) = delete;
  SharedTableView& operator=(const SharedTableView&) = delete;

  const DomainId& domain() const { return domain_; }

  // Holds the ticket's block: the owner does not hand it on until Release().
  // Each success needs one Release(). A block held already is held once more.
  // One that its owner has freed is refused, even if it is held: whoever holds
  // it goes on, and nobody joins them.
  //
  // FAILED_PRECONDITION when the block was freed, and its slot perhaps used
  // again; INVALID_ARGUMENT when the ticket is of another domain, names no
  // slot or generation, or contradicts the owner's record of the block;
  // RESOURCE_EXHAUSTED when it is held 2^32 - 1 times. Nothing is held then.
  //
  // On success the ticket equals the owner's record, which is the owner's word:
  // that the block lies within its segment remains to be checked.
  //
  // `hold` is what the owner sees: HoldWord() of now. Who acquires several asks
  // the clock once.
  absl::Status Acquire(const PoolTicket& ticket,
                       std::uint32_t hold = HoldWord(platform::CoarseNow()));

  // Has what Acquire() will look at come to this processor, for all of them at
  // once: each comes from the owner's, and Acquire() waits for one at a time.
  void Fetch(absl::Span<const PoolTicket> tickets) const;

  // Undoes one Acquire(). The last one gives the block back: the owner may hand
  // it on at once. REQUIRES: held.
  void Release(std::uint32_t slot);

  // How often the slot is held here.
  std::uint32_t References(std::uint32_t slot) const;
  // Whether that block is: a slot's later ones have another generation.
  bool Holds(std::uint32_t slot, std::uint64_t generation) const;

 private:
  // All zero is a slot that is not held and not locked.
  struct Slot {
    std::atomic<std::uint32_t> locked;
    std::uint32_t references;
    std::uint64_t generation;  // While references > 0.
  };
  static_assert(sizeof(Slot) == 16);
  class Lock;

  SharedTableView(const DomainId& domain, platform::SharedMemory table,
                  platform::SharedMemory holds, platform::ZeroedPages slots);
  absl::Status Again(Slot& slot, const PoolTicket& ticket);
  absl::Status First(Slot& slot, const PoolTicket& ticket, std::uint32_t hold);

  const DomainId domain_;
  const platform::SharedMemory table_;
  const platform::SharedMemory hold_memory_;
  const ShareRecord* const records_;
  Hold* const holds_;
  const platform::ZeroedPages slot_pages_;  // Most are never touched.
  Slot* const slots_;
};

}  // namespace vmm::pool

#endif  // VMMSHARE_VMM_POOL_INTERNAL_SHARED_TABLE_VIEW_H_
