#include "vmm/pool/internal/shared_table_view.h"

#include <atomic>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/annotate.h"
#include "platform/base/check.h"
#include "platform/base/status_macros.h"

namespace vmm::pool {

using platform::Check;
using platform::PeerAccess;
using platform::SharedMemory;

namespace {

absl::Status Freed(const PoolTicket& ticket, std::uint64_t now) {
  return absl::FailedPreconditionError(absl::StrCat(
      "the owner has freed the block of this ticket (", ticket.Describe(),
      now == 0 ? "; its slot is empty" : "; its slot is another block's",
      "). Ask it for a new ticket, and to keep the block until it is opened, "
      "in Python the Array or Fence"));
}

absl::Status Contradicts(const PoolTicket& ticket, const ShareRecord& record) {
  return absl::InvalidArgumentError(absl::StrCat(
      "the ticket (", ticket.Describe(), ") contradicts its owner's record: ",
      record.size.load(std::memory_order_relaxed), " bytes at ",
      record.offset.load(std::memory_order_relaxed), " of segment ",
      record.segment.load(std::memory_order_relaxed),
      ". It was changed on its way"));
}

// What the caller keeps alive by a hold does not change meanwhile, unless the
// owner is hostile; then any answer will do.
bool Agrees(const PoolTicket& ticket, const ShareRecord& record) {
  return record.offset.load(std::memory_order_relaxed) == ticket.offset &&
         record.size.load(std::memory_order_relaxed) == ticket.size &&
         record.segment.load(std::memory_order_relaxed) == ticket.segment;
}

absl::Status CheckHeader(const SharedMemory& table, const DomainId& domain) {
  ShareHeader header;
  // Copied once, then judged: a hostile owner may be changing it.
  std::memcpy(static_cast<void*>(&header), table.bytes().data(),
              sizeof(header));
  if (header.magic != kShareMagic) {
    return absl::InvalidArgumentError(
        "the memory that the owner sent is no share table: it does not start "
        "with \"VMSHPOOL\"");
  }
  // None of version 0 was ever written.
  if (header.version != 0 && (header.version < kOldestShareVersion ||
                              header.version > kShareVersion)) {
    return absl::UnimplementedError(absl::StrCat(
        "the owner's share table is of version ", header.version,
        "; this vmmshare reads versions ", kOldestShareVersion, " and ",
        kShareVersion,
        ". Use the same release in the owner and in the importer"));
  }
  if (header.version == 0 || header.slots != kPoolSlots) {
    return absl::InvalidArgumentError(
        absl::StrCat("the owner's share table is of version ", header.version,
                     " with ", header.slots, " slots; expected version ",
                     kShareVersion, " with ", kPoolSlots));
  }
  if (header.domain != domain.bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the owner's share table is of sharing domain ",
        DomainId{header.domain}.ToString(), "; expected ", domain.ToString()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<SharedTableView>> SharedTableView::Open(
    const platform::OsHandle& table, const platform::OsHandle& holds,
    const DomainId& domain, std::uint32_t max_references) {
  absl::StatusOr<SharedMemory> table_memory =
      SharedMemory::Open(table, kShareTableBytes, PeerAccess::kRead);
  if (!table_memory.ok()) {
    return platform::Annotate(table_memory.status(), "share table");
  }
  RETURN_IF_ERROR(CheckHeader(*table_memory, domain));
  absl::StatusOr<SharedMemory> hold_memory =
      SharedMemory::Open(holds, kHoldTableBytes, PeerAccess::kReadWrite);
  if (!hold_memory.ok()) {
    return platform::Annotate(hold_memory.status(), "hold table");
  }
  absl::StatusOr<platform::ZeroedPages> slots =
      platform::MapZeroedPages(kPoolSlots * sizeof(Slot));
  if (!slots.ok()) {
    return platform::Annotate(slots.status(), "the counts of a share table");
  }
  return std::unique_ptr<SharedTableView>(new SharedTableView(
      domain, *std::move(table_memory), *std::move(hold_memory),
      *std::move(slots), max_references));
}

SharedTableView::SharedTableView(const DomainId& domain, SharedMemory table,
                                 SharedMemory holds,
                                 platform::ZeroedPages slots,
                                 std::uint32_t max_references)
    : domain_(domain),
      table_(std::move(table)),
      hold_memory_(std::move(holds)),
      records_(reinterpret_cast<const ShareRecord*>(table_.bytes().data() +
                                                    kShareHeaderBytes)),
      holds_(reinterpret_cast<Hold*>(hold_memory_.writable_bytes().data())),
      slot_pages_(std::move(slots)),
      slots_(reinterpret_cast<Slot*>(slot_pages_.get().data())),
      max_references_(max_references) {}

absl::Status SharedTableView::Acquire(absl::Span<const PoolTicket> tickets,
                                      std::uint32_t hold) {
  const std::size_t named = CountNamed(tickets);
  const std::size_t held = HoldAll(tickets.first(named), hold);
  // The order of the holds before it and of the generations behind it is the
  // whole argument: see share_table.h.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  std::size_t confirmed = 0;
  while (confirmed < held && Confirm(tickets[confirmed])) ++confirmed;
  if (confirmed == tickets.size()) [[likely]] {
    return absl::OkStatus();
  }
  // Before the reason is put into words, which takes time and memory.
  for (const PoolTicket& ticket : tickets.first(held)) Release(ticket.slot);
  return WhyRefused(tickets[confirmed], confirmed == held && held < named);
}

bool SharedTableView::IsNamed(const PoolTicket& ticket) const {
  // Generation 0 would equal that of an empty slot.
  return ticket.domain == domain_ && ticket.slot < kPoolSlots &&
         ticket.generation != 0;
}

std::size_t SharedTableView::CountNamed(
    absl::Span<const PoolTicket> tickets) const {
  std::size_t named = 0;
  for (; named < tickets.size() && IsNamed(tickets[named]); ++named) {
    // Each record comes from the owner's processor. No load needs another's
    // result, so that all are under way at once.
    records_[tickets[named].slot].generation.load(std::memory_order_relaxed);
  }
  return named;
}

std::size_t SharedTableView::HoldAll(absl::Span<const PoolTicket> tickets,
                                     std::uint32_t hold) {
  std::size_t held = 0;
  for (const PoolTicket& ticket : tickets) {
    Slot& slot = slots_[ticket.slot];
    if (slot.references == 0) {
      holds_[ticket.slot].store(hold, std::memory_order_relaxed);
    } else if (slot.references == max_references_) {
      break;
    }
    ++slot.references;
    ++held;
  }
  return held;
}

bool SharedTableView::Confirm(const PoolTicket& ticket) {
  Slot& slot = slots_[ticket.slot];
  const ShareRecord& record = records_[ticket.slot];
  const std::uint64_t generation =
      record.generation.load(std::memory_order_seq_cst);
  // Where the slot was held before, that hold stands for this one. While it
  // does the slot is not used again, so that the generation is the held
  // block's, or 0 once its owner has freed it: new users are refused then, and
  // those there are go on.
  if (generation != ticket.generation ||
      (slot.generation != 0 && slot.generation != generation) ||
      !Agrees(ticket, record)) [[unlikely]] {
    return false;
  }
  slot.generation = generation;
  return true;
}

absl::Status SharedTableView::WhyRefused(const PoolTicket& ticket,
                                         bool is_held_too_often) const {
  if (ticket.domain != domain_) {
    return absl::InvalidArgumentError(
        absl::StrCat("the ticket (", ticket.Describe(),
                     ") is of another sharing domain than ", domain_.ToString(),
                     ", which it was given to"));
  }
  if (!IsNamed(ticket)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the ticket (", ticket.Describe(),
                     ") names no block: expected a slot below ", kPoolSlots,
                     " and a generation from 1"));
  }
  if (is_held_too_often) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the block (", ticket.Describe(), ") is held ", max_references_,
        " times by this process; give some of them back"));
  }
  const ShareRecord& record = records_[ticket.slot];
  const std::uint64_t generation =
      record.generation.load(std::memory_order_seq_cst);
  return generation == ticket.generation && !Agrees(ticket, record)
             ? Contradicts(ticket, record)
             : Freed(ticket, generation);
}

void SharedTableView::PopulateAhead() const {
  platform::PopulatePages(slot_pages_.get().first(kSlotsAhead * sizeof(Slot)));
  platform::PopulatePages(
      hold_memory_.writable_bytes().first(kSlotsAhead * sizeof(Hold)));
}

void SharedTableView::Release(std::uint32_t number) {
  Check(number < kPoolSlots, "SharedTableView::Release() of no slot");
  Slot& slot = slots_[number];
  Check(slot.references > 0,
        "SharedTableView::Release() of a slot that is not held");
  if (--slot.references > 0) return;
  slot.generation = 0;
  // What was done with the block comes before its reuse.
  holds_[number].store(0, std::memory_order_release);
}

std::uint32_t SharedTableView::References(std::uint32_t number) const {
  Check(number < kPoolSlots, "SharedTableView::References() of no slot");
  return slots_[number].references;
}

bool SharedTableView::Holds(std::uint32_t number,
                            std::uint64_t generation) const {
  Check(number < kPoolSlots, "SharedTableView::Holds() of no slot");
  const Slot& slot = slots_[number];
  return slot.references > 0 && slot.generation == generation;
}

}  // namespace vmm::pool
