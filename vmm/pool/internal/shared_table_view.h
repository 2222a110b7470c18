// SharedTableView: a peer's side of a sharing domain's control memory;
// internal.
//
// Acquire() is what importing blocks costs: a store and a few loads for each and
// one fence for all, no call of the system or of the driver. share_table.h says
// why it is safe.
#ifndef VMMSHARE_VMM_POOL_INTERNAL_SHARED_TABLE_VIEW_H_
#define VMMSHARE_VMM_POOL_INTERNAL_SHARED_TABLE_VIEW_H_

#include <cstddef>
#include <cstdint>
#include <limits>
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

// Not synchronised: the caller's lock orders all calls. Only what the owner
// does at the same time is taken care of here.
//
// It does not give back what is held when it goes: blocks may be in use by
// then. What was not released stays held until this process has ended.
//
// fork: the counts are copied and the holds are not, so a child must not call
// anything here: its Release() would take a hold from under its parent.
class SharedTableView {
 public:
  // How often a process can hold a block.
  static constexpr std::uint32_t kMaxReferences =
      std::numeric_limits<std::uint32_t>::max();

  // Opens the two memories that the owner sent. The handles stay the caller's
  // and are not needed afterwards. INVALID_ARGUMENT when either is not such a
  // memory, or the table is not one of `domain`; UNIMPLEMENTED when it is of a
  // newer version. One view a hold table: counts are kept in the view, each up
  // to `max_references`. Tests make do with fewer: the most take minutes.
  static absl::StatusOr<std::unique_ptr<SharedTableView>> Open(
      const platform::OsHandle& table, const platform::OsHandle& holds,
      const DomainId& domain, std::uint32_t max_references = kMaxReferences);

  SharedTableView(const SharedTableView&) = delete;
  SharedTableView& operator=(const SharedTableView&) = delete;

  const DomainId& domain() const { return domain_; }

  // Holds the blocks of all tickets, or of none: the owner does not hand one on
  // until Release(). Each success needs one Release() a ticket. A block held
  // already is held once more. One that its owner has freed is refused, even if
  // it is held: whoever holds it goes on, and nobody joins them.
  //
  // The first that is refused says why. FAILED_PRECONDITION when the block was
  // freed, and its slot perhaps used again; INVALID_ARGUMENT when the ticket is
  // of another domain, names no slot or generation, or contradicts the owner's
  // record of the block; RESOURCE_EXHAUSTED when it is held kMaxReferences
  // times.
  // Nothing is held then that was not before.
  //
  // On success each ticket equals the owner's record, which is the owner's
  // word: that the block lies within its segment remains to be checked.
  //
  // `hold` is what the owner sees: HoldWord() of now.
  absl::Status Acquire(absl::Span<const PoolTicket> tickets,
                       std::uint32_t hold = HoldWord(platform::CoarseNow()));
  absl::Status Acquire(const PoolTicket& ticket) {
    return Acquire(absl::MakeConstSpan(&ticket, 1));
  }

  // Undoes the Acquire() of one ticket. The last one gives the block back: the
  // owner may hand it on at once. REQUIRES: held.
  void Release(std::uint32_t slot);

  // Has the pages of the first kSlotsAhead slots be there; 0.1 ms. Thread-safe:
  // the one call that needs no lock.
  void PopulateAhead() const;

  // For tests: how often the slot is held here.
  std::uint32_t References(std::uint32_t slot) const;
  // Whether that block is: a slot's later ones have another generation.
  bool Holds(std::uint32_t slot, std::uint64_t generation) const;

 private:
  // All zero is a slot that is not held.
  struct Slot {
    std::uint32_t references;
    std::uint64_t generation;  // 0 until it is known which one is held.
  };
  static_assert(sizeof(Slot) == 16);

  SharedTableView(const DomainId& domain, platform::SharedMemory table,
                  platform::SharedMemory holds, platform::ZeroedPages slots,
                  std::uint32_t max_references);
  bool IsNamed(const PoolTicket& ticket) const;
  // How many of the first could name blocks of this domain.
  std::size_t CountNamed(absl::Span<const PoolTicket> tickets) const;
  // Holds the slots, or those up to one that is held too often; how many.
  std::size_t HoldAll(absl::Span<const PoolTicket> tickets, std::uint32_t hold);
  // Whether what is held is what the ticket says.
  bool Confirm(const PoolTicket& ticket);
  absl::Status WhyRefused(const PoolTicket& ticket,
                          bool is_held_too_often) const;

  const DomainId domain_;
  const platform::SharedMemory table_;
  const platform::SharedMemory hold_memory_;
  const ShareRecord* const records_;
  Hold* const holds_;
  const platform::ZeroedPages slot_pages_;  // Most are never touched.
  Slot* const slots_;
  const std::uint32_t max_references_;
};

}  // namespace vmm::pool

#endif  // VMMSHARE_VMM_POOL_INTERNAL_SHARED_TABLE_VIEW_H_
