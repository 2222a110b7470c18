#include "vmm/pool/internal/shared_table_view.h"

#include <cstring>
#include <limits>
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
      "). Ask it for a new ticket"));
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
  if (header.version > kShareVersion) {
    return absl::UnimplementedError(
        absl::StrCat("the owner's share table is of version ", header.version,
                     "; this vmmshare reads version ", kShareVersion,
                     ". Update it to the owner's"));
  }
  if (header.version != kShareVersion || header.slots != kPoolSlots) {
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
    const DomainId& domain) {
  absl::StatusOr<SharedMemory> table_memory =
      SharedMemory::Open(table, kShareTableBytes, PeerAccess::kRead);
  if (!table_memory.ok()) {
    return platform::Annotate(table_memory.status(), "share table");
  }
  if (absl::Status good = CheckHeader(*table_memory, domain); !good.ok()) {
    return good;
  }
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
  return std::unique_ptr<SharedTableView>(
      new SharedTableView(domain, *std::move(table_memory),
                          *std::move(hold_memory), *std::move(slots)));
}

SharedTableView::SharedTableView(const DomainId& domain, SharedMemory table,
                                 SharedMemory holds,
                                 platform::ZeroedPages slots)
    : domain_(domain),
      table_(std::move(table)),
      hold_memory_(std::move(holds)),
      records_(reinterpret_cast<const ShareRecord*>(table_.bytes().data() +
                                                    kShareHeaderBytes)),
      holds_(reinterpret_cast<Hold*>(hold_memory_.writable_bytes().data())),
      slot_pages_(std::move(slots)),
      slots_(reinterpret_cast<Slot*>(slot_pages_.get().data())) {}

absl::Status SharedTableView::Acquire(absl::Span<const PoolTicket> tickets,
                                      std::uint32_t hold) {
  RETURN_IF_ERROR(CheckAll(tickets));
  const std::size_t held = HoldAll(tickets, hold);
  // The order of the holds before it and of the generations behind it is the
  // whole argument: see share_table.h.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  absl::Status status;
  for (const PoolTicket& ticket : tickets.subspan(0, held)) {
    status = Confirm(ticket);
    if (!status.ok()) [[unlikely]] {
      break;
    }
  }
  if (status.ok() && held < tickets.size()) [[unlikely]] {
    status = absl::ResourceExhaustedError(absl::StrCat(
        "the block (", tickets[held].Describe(),
        ") is held 2^32 - 1 times by this process; give some of them back"));
  }
  if (status.ok()) [[likely]] {
    return status;
  }
  for (const PoolTicket& ticket : tickets.subspan(0, held)) {
    Release(ticket.slot);
  }
  return status;
}

absl::Status SharedTableView::CheckAll(
    absl::Span<const PoolTicket> tickets) const {
  for (const PoolTicket& ticket : tickets) {
    if (ticket.domain != domain_) [[unlikely]] {
      return absl::InvalidArgumentError(
          absl::StrCat("the ticket (", ticket.Describe(),
                       ") is of another sharing domain than ",
                       domain_.ToString(), ", which it was given to"));
    }
    // Generation 0 would equal that of an empty slot.
    if (ticket.slot >= kPoolSlots || ticket.generation == 0) [[unlikely]] {
      return absl::InvalidArgumentError(
          absl::StrCat("the ticket (", ticket.Describe(),
                       ") names no block: expected a slot "
                       "below ",
                       kPoolSlots, " and a generation from 1"));
    }
    // Each record comes from the owner's processor. No load needs another's
    // result, so that all are under way at once.
    records_[ticket.slot].generation.load(std::memory_order_relaxed);
  }
  return absl::OkStatus();
}

std::size_t SharedTableView::HoldAll(absl::Span<const PoolTicket> tickets,
                                     std::uint32_t hold) {
  std::size_t held = 0;
  for (const PoolTicket& ticket : tickets) {
    if (ticket.slot >= kSlotsAhead) PopulateBeyond(ticket.slot);
    Slot& slot = slots_[ticket.slot];
    if (slot.references == 0) {
      holds_[ticket.slot].store(hold, std::memory_order_relaxed);
    } else if (slot.references == std::numeric_limits<std::uint32_t>::max()) {
      break;
    }
    ++slot.references;
    ++held;
  }
  return held;
}

void SharedTableView::Populate(std::uint32_t slot, std::uint32_t count) const {
  platform::PopulatePages(
      slot_pages_.get().subspan(slot * sizeof(Slot), count * sizeof(Slot)));
  platform::PopulatePages(hold_memory_.writable_bytes().subspan(
      slot * sizeof(Hold), count * sizeof(Hold)));
}

void SharedTableView::PopulateBeyond(std::uint32_t slot) {
  const std::uint32_t chunk = slot / kSlotsAtOnce;
  if (populated_[chunk]) return;
  populated_.set(chunk);
  Populate(chunk * kSlotsAtOnce, kSlotsAtOnce);
}

absl::Status SharedTableView::Confirm(const PoolTicket& ticket) {
  Slot& slot = slots_[ticket.slot];
  const ShareRecord& record = records_[ticket.slot];
  // Where the slot was held before, that hold stands for this one. While it
  // does the slot is not used again, so that the generation is the held
  // block's, or 0 once its owner has freed it: new users are refused then, and
  // those there are go on.
  const std::uint64_t generation =
      record.generation.load(std::memory_order_seq_cst);
  if (generation != ticket.generation ||
      (slot.generation != 0 && slot.generation != generation)) [[unlikely]] {
    return Freed(ticket, generation);
  }
  if (!Agrees(ticket, record)) [[unlikely]] {
    return Contradicts(ticket, record);
  }
  slot.generation = generation;
  return absl::OkStatus();
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
