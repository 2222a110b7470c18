#include "vmm/pool/internal/shared_table_view.h"

#include <cstring>
#include <limits>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/annotate.h"
#include "platform/base/check.h"

namespace vmm::pool {

using platform::Check;
using platform::PeerAccess;
using platform::SharedMemory;

// Spins, and lets others run when the holder does not: it may have been
// preempted. Nothing inside waits.
class SharedTableView::Lock {
 public:
  explicit Lock(Slot& slot) : locked_(slot.locked) {
    constexpr int kSpins = 64;
    for (int i = 0; locked_.exchange(1, std::memory_order_acquire) != 0; ++i) {
      if (i >= kSpins) std::this_thread::yield();
    }
  }
  ~Lock() { locked_.store(0, std::memory_order_release); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  std::atomic<std::uint32_t>& locked_;
};

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

absl::Status SharedTableView::Acquire(const PoolTicket& ticket,
                                      std::uint32_t hold) {
  if (ticket.domain != domain_) [[unlikely]] {
    return absl::InvalidArgumentError(
        absl::StrCat("the ticket (", ticket.Describe(),
                     ") is of another sharing domain than ", domain_.ToString(),
                     ", which it was given to"));
  }
  // Generation 0 would equal that of an empty slot.
  if (ticket.slot >= kPoolSlots || ticket.generation == 0) [[unlikely]] {
    return absl::InvalidArgumentError(
        absl::StrCat("the ticket (", ticket.Describe(),
                     ") names no block: expected a slot "
                     "below ",
                     kPoolSlots, " and a generation from 1"));
  }
  Slot& slot = slots_[ticket.slot];
  const Lock lock(slot);
  return slot.references > 0 ? Again(slot, ticket) : First(slot, ticket, hold);
}

void SharedTableView::Fetch(absl::Span<const PoolTicket> tickets) const {
  // No load needs another's result, so the processor has all under way at once.
  for (const PoolTicket& ticket : tickets) {
    const std::uint32_t slot = ticket.slot % kPoolSlots;
    records_[slot].generation.load(std::memory_order_relaxed);
    slots_[slot].locked.load(std::memory_order_relaxed);
    holds_[slot].load(std::memory_order_relaxed);
  }
}

absl::Status SharedTableView::Again(Slot& slot, const PoolTicket& ticket) {
  // The hold that is there stands for the one that First() sets. While it does
  // the slot is not used again, so that the generation is the held block's, or
  // 0 once its owner has freed it: new users are refused then, and those there
  // are go on.
  const ShareRecord& record = records_[ticket.slot];
  const std::uint64_t generation =
      record.generation.load(std::memory_order_seq_cst);
  if (generation != ticket.generation || generation != slot.generation) {
    return Freed(ticket, generation);
  }
  if (!Agrees(ticket, record)) return Contradicts(ticket, record);
  if (slot.references == std::numeric_limits<std::uint32_t>::max()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the block (", ticket.Describe(),
                     ") is held 2^32 - 1 times by this process; give some of "
                     "them back"));
  }
  ++slot.references;
  return absl::OkStatus();
}

absl::Status SharedTableView::First(Slot& slot, const PoolTicket& ticket,
                                    std::uint32_t word) {
  const ShareRecord& record = records_[ticket.slot];
  Hold& hold = holds_[ticket.slot];
  // The order of these two and their being sequentially consistent is the whole
  // argument: see share_table.h.
  hold.store(word, std::memory_order_seq_cst);
  const std::uint64_t generation =
      record.generation.load(std::memory_order_seq_cst);
  const bool is_shared = generation == ticket.generation;
  if (is_shared && Agrees(ticket, record)) [[likely]] {
    slot.references = 1;
    slot.generation = generation;
    return absl::OkStatus();
  }
  // First, so that the owner sees it for as short as can be.
  hold.store(0, std::memory_order_release);
  return is_shared ? Contradicts(ticket, record) : Freed(ticket, generation);
}

void SharedTableView::Release(std::uint32_t number) {
  Check(number < kPoolSlots, "SharedTableView::Release() of no slot");
  Slot& slot = slots_[number];
  const Lock lock(slot);
  Check(slot.references > 0,
        "SharedTableView::Release() of a slot that is not held");
  if (--slot.references == 0) {
    // What was done with the block comes before its reuse.
    holds_[number].store(0, std::memory_order_release);
  }
}

std::uint32_t SharedTableView::References(std::uint32_t number) const {
  Check(number < kPoolSlots, "SharedTableView::References() of no slot");
  Slot& slot = slots_[number];
  const Lock lock(slot);
  return slot.references;
}

bool SharedTableView::Holds(std::uint32_t number,
                            std::uint64_t generation) const {
  Check(number < kPoolSlots, "SharedTableView::Holds() of no slot");
  Slot& slot = slots_[number];
  const Lock lock(slot);
  return slot.references > 0 && slot.generation == generation;
}

}  // namespace vmm::pool
