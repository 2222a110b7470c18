// RingItem: what is sent when a buffer of a ring is handed over: where it is,
// and which values of which fences say that it is full and that it is free.
//
// 184 bytes, and the ring's own (ring.h). No handle travels with it: the
// tickets are of pools that the reader has subscribed to.
//
// The byte layout is in docs/wire_format.md.
#ifndef VMMSHARE_VMM_QUEUE_INTERNAL_RING_ITEM_H_
#define VMMSHARE_VMM_QUEUE_INTERNAL_RING_ITEM_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "vmm/pool/pool_ticket.h"
#include "vmm/sync/fence_pool.h"

namespace vmm {

inline constexpr std::size_t kRingItemBytes = 184;

// A value. Default-constructed it is no item: DecodeRingItem() refuses it.
struct RingItem {
  std::uint64_t number = 0;  // From 1, in the order of acquisition.
  // How often its buffer was used, this time included: from 1. `full` is
  // signalled this when the contents are there, `free` when they are used up.
  std::uint64_t lap = 0;
  std::uint64_t size = 0;  // Bytes that are meant: 0 to block.size.
  std::uint64_t tag = 0;   // The program's own.
  PoolTicket block;
  FenceTicket full;
  FenceTicket free;

  friend bool operator==(const RingItem&, const RingItem&) = default;
};

using RingItemBytes = std::array<std::uint8_t, kRingItemBytes>;

// Any value, without judging it. Thread-safe; allocates nothing.
RingItemBytes EncodeRingItem(const RingItem& item);

// Total. INVALID_ARGUMENT for another size than kRingItemBytes, a number or lap
// of 0, a lap that no fence can be signalled, a lap above the number, a size
// above the block's, and a ticket that is none; UNIMPLEMENTED for a newer one.
absl::StatusOr<RingItem> DecodeRingItem(absl::Span<const std::uint8_t> in);

}  // namespace vmm

#endif  // VMMSHARE_VMM_QUEUE_INTERNAL_RING_ITEM_H_
