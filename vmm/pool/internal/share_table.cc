#include "vmm/pool/internal/share_table.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "platform/base/annotate.h"
#include "platform/base/check.h"
#include "platform/base/status_macros.h"
#include "platform/os/os_error.h"
#include "platform/os/zeroed_pages.h"

namespace vmm::pool {

using platform::Check;
using platform::PeerAccess;
using platform::SharedMemory;

ShareTable::ShareTable(const DomainId& domain, SharedMemory table)
    : domain_(domain), table_(std::move(table)) {
  const ShareHeader header = {kShareMagic, kShareVersion, kPoolSlots,
                              domain.bytes};
  std::memcpy(table_.writable_bytes().data(), &header, sizeof(header));
  // All at once, so that no Publish() and no Recycle() grows them: pages that
  // are not used are not there.
  slots_.reserve(kPoolSlots);
  free_.reserve(kPoolSlots);
}

absl::StatusOr<ShareTable> ShareTable::Create(const DomainId& domain) {
  ASSIGN_OR_RETURN(SharedMemory table,
                   SharedMemory::Create(kShareTableBytes, PeerAccess::kRead));
  try {
    return ShareTable(domain, std::move(table));
  } catch (const std::bad_alloc&) {
    return platform::Annotate(
        absl::ResourceExhaustedError(
            absl::StrCat("no memory for the books of ", kPoolSlots, " slots")),
        "", platform::NearLimit());
  }
}

ShareRecord& ShareTable::Record(std::uint32_t slot) const {
  return reinterpret_cast<ShareRecord*>(table_.writable_bytes().data() +
                                        kShareHeaderBytes)[slot];
}

void ShareTable::CheckState(std::uint32_t slot, State expected,
                            const char* call) const {
  if (slot < slots_.size() && slots_[slot].state == expected) [[likely]] {
    return;
  }
  platform::Die(absl::StrCat(
      "ShareTable::", call, "(", slot, ") of a slot that is ",
      slot >= slots_.size() || slots_[slot].state == State::kFree ? "free"
      : slots_[slot].state == State::kPublished                   ? "published"
                                                : "withdrawn"));
}

void ShareTable::PopulateAhead() const {
  platform::PopulatePages(table_.writable_bytes().first(
      kShareHeaderBytes + kSlotsAhead * sizeof(ShareRecord)));
  // Of the vector's reserve, which stays where it is.
  auto* const slots = const_cast<Slot*>(slots_.data());
  platform::PopulatePages(
      {reinterpret_cast<std::uint8_t*>(slots), kSlotsAhead * sizeof(Slot)});
}

absl::StatusOr<SlotRef> ShareTable::Publish(std::uint32_t segment,
                                            std::uint64_t offset,
                                            std::uint64_t size) {
  Check(segment > 0 && size > 0 &&
            offset <= std::numeric_limits<std::uint64_t>::max() - size,
        "ShareTable::Publish() of no segment, no bytes, or beyond 64 bits");
  std::uint32_t slot = 0;
  if (!free_.empty()) {
    slot = free_.back();
    free_.pop_back();
  } else if (slots_.size() < kPoolSlots) {
    slot = static_cast<std::uint32_t>(slots_.size());
    slots_.emplace_back();
  } else {
    return absl::ResourceExhaustedError(absl::StrCat(
        "all ", kPoolSlots, " slots of sharing domain ", domain_.ToString(),
        " are in use; free shared blocks, wait until peers give theirs back, "
        "or put blocks into another sharing domain"));
  }
  const std::uint64_t generation = next_generation_++;
  slots_[slot].generation = generation;
  slots_[slot].state = State::kPublished;
  ShareRecord& record = Record(slot);
  record.offset.store(offset, std::memory_order_relaxed);
  record.size.store(size, std::memory_order_relaxed);
  record.segment.store(segment, std::memory_order_relaxed);
  // Whoever sees the generation sees the fields above.
  record.generation.store(generation, std::memory_order_release);
  return SlotRef{slot, generation};
}

void ShareTable::Withdraw(std::uint32_t slot) {
  CheckState(slot, State::kPublished, "Withdraw");
  slots_[slot].state = State::kWithdrawn;
  // Before the holds are looked at: see the top of the header.
  Record(slot).generation.store(0, std::memory_order_seq_cst);
}

std::uint64_t ShareTable::GenerationOf(std::uint32_t slot) const {
  Check(slot < slots_.size() && slots_[slot].state != State::kFree,
        "ShareTable::GenerationOf() of a slot that is free");
  return slots_[slot].generation;
}

bool ShareTable::IsInUse(const SlotRef& ref) const {
  return ref.slot < slots_.size() && slots_[ref.slot].state != State::kFree &&
         slots_[ref.slot].generation == ref.generation;
}

bool ShareTable::Held(std::uint32_t slot) const {
  CheckState(slot, State::kWithdrawn, "Held");
  return std::any_of(peers_.begin(), peers_.end(), [slot](const Peer& peer) {
    // Also orders what the peer did with the block before its reuse.
    return peer.holds[slot].load(std::memory_order_seq_cst) != 0;
  });
}

std::uint32_t ShareTable::HoldOf(std::uint32_t slot, PeerId peer) const {
  Check(slot < slots_.size() && slots_[slot].state != State::kFree,
        "ShareTable::HoldOf() of a slot that is free");
  return Find(peer).holds[slot].load(std::memory_order_seq_cst);
}

void ShareTable::Recycle(std::uint32_t slot) {
  CheckState(slot, State::kWithdrawn, "Recycle");
  slots_[slot].state = State::kFree;
  free_.push_back(slot);
}

absl::StatusOr<PeerId> ShareTable::AddPeer() {
  ASSIGN_OR_RETURN(
      SharedMemory memory,
      SharedMemory::Create(kHoldTableBytes, PeerAccess::kReadWrite));
  const auto* holds = reinterpret_cast<const Hold*>(memory.bytes().data());
  const PeerId id{next_peer_++};
  peers_.push_back({id, std::move(memory), holds});
  return id;
}

const ShareTable::Peer& ShareTable::Find(PeerId peer) const {
  const auto found = std::find_if(
      peers_.begin(), peers_.end(),
      [peer](const Peer& candidate) { return candidate.id == peer; });
  Check(found != peers_.end(), "no such peer of this ShareTable");
  return *found;
}

const platform::OsHandle& ShareTable::holds_handle(PeerId peer) const {
  return Find(peer).memory.handle();
}

std::uint32_t ShareTable::HoldsOf(PeerId peer) const {
  const absl::Span<const Hold> used(Find(peer).holds, slots_.size());
  return static_cast<std::uint32_t>(
      std::count_if(used.begin(), used.end(), [](const Hold& hold) {
        return hold.load(std::memory_order_relaxed) != 0;
      }));
}

bool ShareTable::AnyHeld() const {
  return std::any_of(peers_.begin(), peers_.end(), [this](const Peer& peer) {
    const absl::Span<const Hold> used(peer.holds, slots_.size());
    return std::any_of(used.begin(), used.end(), [](const Hold& hold) {
      return hold.load(std::memory_order_seq_cst) != 0;
    });
  });
}

void ShareTable::RemovePeer(PeerId peer) {
  const Peer& found = Find(peer);
  peers_.erase(peers_.begin() + (&found - peers_.data()));
}

}  // namespace vmm::pool
