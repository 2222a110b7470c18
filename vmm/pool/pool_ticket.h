// PoolTicket: the plain data by which a peer finds a block of a pool.
//
// 56 bytes, sent by whatever means the program has: no handle
// travels with it. It is no secret and no proof: every field is compared with
// the owner's record of the block before it is believed, so that a ticket with
// any bit changed, or one of a block that has been freed, is refused.
//
// The byte layout is in docs/wire_format.md.
#ifndef VMMSHARE_VMM_POOL_POOL_TICKET_H_
#define VMMSHARE_VMM_POOL_POOL_TICKET_H_

#include <array>
#include <bit>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace vmm {

// Which sharing domain of which pool: 128 random bits.
struct DomainId {
  std::array<std::uint8_t, 16> bytes{};
  std::string ToString() const;
  friend bool operator==(const DomainId&, const DomainId&) = default;
  friend auto operator<=>(const DomainId&, const DomainId&) = default;
};

// How many blocks of one sharing domain can be shared at a time.
inline constexpr std::uint32_t kPoolSlots = std::uint32_t{1} << 20;

inline constexpr std::size_t kPoolTicketBytes = 56;

// A value. Default-constructed it is no block's: DecodePoolTicket() refuses it.
struct PoolTicket {
  DomainId domain;
  std::uint32_t segment = 0;     // From 1.
  std::uint32_t slot = 0;        // Below kPoolSlots.
  std::uint64_t generation = 0;  // From 1; no two blocks of a domain have one.
  std::uint64_t offset = 0;      // Bytes into the segment.
  std::uint64_t size = 0;        // Bytes.

  // For messages: "block of 65536 bytes at 131072 of segment 2, slot 7.19,
  // domain 01ab...".
  std::string Describe() const;
  friend bool operator==(const PoolTicket&, const PoolTicket&) = default;
};

using PoolTicketBytes = std::array<std::uint8_t, kPoolTicketBytes>;

// Any value, without judging it. Thread-safe; allocates nothing.
PoolTicketBytes EncodePoolTicket(const PoolTicket& ticket);

// Total. INVALID_ARGUMENT for another size than kPoolTicketBytes, another
// magic, bytes that are not zero where they must be, a segment, generation or
// size of 0, a slot that is none, and an end beyond 64 bits; UNIMPLEMENTED for
// a newer version. Thread-safe; allocates only to say what is wrong.
absl::StatusOr<PoolTicket> DecodePoolTicket(absl::Span<const std::uint8_t> in);

// ---------------------------------------------------------------------------
// Only implementation below: these two are on the path of every block.

namespace internal {

// "VPT" and, in the highest byte, the version.
inline constexpr std::uint32_t kPoolTicketMagic = 0x545056;
inline constexpr std::uint32_t kPoolTicketVersion = 1;

// The value whose bytes in memory are those of `value` in little-endian order,
// and back.
template <typename T>
constexpr T LittleEndian(T value) {
  if constexpr (std::endian::native == std::endian::little) {
    return value;
  } else {
    T swapped = 0;
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      swapped = static_cast<T>(swapped << 8) | ((value >> (8 * i)) & 0xff);
    }
    return swapped;
  }
}

template <typename T>
void PutAt(PoolTicketBytes& out, std::size_t at, T value) {
  value = LittleEndian(value);
  std::memcpy(out.data() + at, &value, sizeof(value));
}

template <typename T>
T TakeAt(const std::uint8_t* in, std::size_t at) {
  T value;
  std::memcpy(&value, in + at, sizeof(value));
  return LittleEndian(value);
}

// Why DecodePoolTicket() refuses `in`. Never OK.
absl::Status WhyNoPoolTicket(absl::Span<const std::uint8_t> in);

}  // namespace internal

inline PoolTicketBytes EncodePoolTicket(const PoolTicket& ticket) {
  using internal::PutAt;
  PoolTicketBytes out;
  PutAt(out, 0,
        internal::kPoolTicketMagic | (internal::kPoolTicketVersion << 24));
  PutAt(out, 4, ticket.segment);
  std::memcpy(out.data() + 8, ticket.domain.bytes.data(), 16);
  PutAt(out, 24, ticket.slot);
  PutAt(out, 28, std::uint32_t{0});
  PutAt(out, 32, ticket.generation);
  PutAt(out, 40, ticket.offset);
  PutAt(out, 48, ticket.size);
  return out;
}

inline absl::StatusOr<PoolTicket> DecodePoolTicket(
    absl::Span<const std::uint8_t> in) {
  using internal::TakeAt;
  if (in.size() != kPoolTicketBytes) return internal::WhyNoPoolTicket(in);
  PoolTicket ticket;
  const auto head = TakeAt<std::uint32_t>(in.data(), 0);
  ticket.segment = TakeAt<std::uint32_t>(in.data(), 4);
  std::memcpy(ticket.domain.bytes.data(), in.data() + 8, 16);
  ticket.slot = TakeAt<std::uint32_t>(in.data(), 24);
  const auto zero = TakeAt<std::uint32_t>(in.data(), 28);
  ticket.generation = TakeAt<std::uint64_t>(in.data(), 32);
  ticket.offset = TakeAt<std::uint64_t>(in.data(), 40);
  ticket.size = TakeAt<std::uint64_t>(in.data(), 48);
  const bool good =
      head ==
          (internal::kPoolTicketMagic | (internal::kPoolTicketVersion << 24)) &&
      zero == 0 && ticket.segment != 0 && ticket.slot < kPoolSlots &&
      ticket.generation != 0 && ticket.size != 0 &&
      ticket.offset <= std::numeric_limits<std::uint64_t>::max() - ticket.size;
  if (!good) [[unlikely]] {
    return internal::WhyNoPoolTicket(in);
  }
  return ticket;
}

}  // namespace vmm

#endif  // VMMSHARE_VMM_POOL_POOL_TICKET_H_
