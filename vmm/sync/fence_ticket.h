// FenceTicket: the plain data by which a peer finds a fence.
//
// 48 bytes, sent by whatever means the program has: no handle travels with it.
// A fence is a block of a pool (fence_pool.h), so this is a PoolTicket in other
// clothes: every field is compared with the owner's record of the block, so
// that a ticket with any bit changed, or one of a fence that is gone, is
// refused. It has a magic of its own: a fence's ticket is not taken for a
// buffer's, nor the other way round.
//
// The byte layout is in docs/wire_format.md.
#ifndef VMMSHARE_VMM_SYNC_FENCE_TICKET_H_
#define VMMSHARE_VMM_SYNC_FENCE_TICKET_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "vmm/pool/pool_ticket.h"

namespace vmm {

// Of memory for each fence: the pool's smallest block. So no two fences are in
// one cache line of a CPU (64, or 128 as they are fetched in pairs) or a GPU
// (128), and 100,000 take 24.4 MiB.
inline constexpr std::uint64_t kFenceBytes = 256;

inline constexpr std::size_t kFenceTicketBytes = 48;

// A value. Default-constructed it is no fence's: DecodeFenceTicket() refuses
// it.
struct FenceTicket {
  DomainId domain;
  std::uint32_t segment = 0;     // From 1.
  std::uint32_t slot = 0;        // Below kPoolSlots.
  std::uint64_t generation = 0;  // From 1; no two fences of a domain have one.
  std::uint64_t offset = 0;      // Into the segment: a multiple of kFenceBytes.

  // For messages: "fence at 512 of segment 2, slot 7.19, domain 01ab...".
  std::string Describe() const;
  friend bool operator==(const FenceTicket&, const FenceTicket&) = default;
};

using FenceTicketBytes = std::array<std::uint8_t, kFenceTicketBytes>;

// Any value, without judging it. Thread-safe; allocates nothing.
FenceTicketBytes EncodeFenceTicket(const FenceTicket& ticket);

// Total. INVALID_ARGUMENT for another size than kFenceTicketBytes, another
// magic, bytes that are not zero where they must be, a segment or generation of
// 0, a slot that is none, and an offset at which no fence can be; UNIMPLEMENTED
// for a newer version. Thread-safe; allocates only to say what is wrong.
absl::StatusOr<FenceTicket> DecodeFenceTicket(
    absl::Span<const std::uint8_t> in);

// The block that a fence is, and back. A value for a value: judges nothing.
PoolTicket BlockOf(const FenceTicket& ticket);
FenceTicket FenceOf(const PoolTicket& block);

}  // namespace vmm

#endif  // VMMSHARE_VMM_SYNC_FENCE_TICKET_H_
