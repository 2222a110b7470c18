#include <cstring>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "vmm/sync/fence_pool.h"

namespace vmm {
namespace {

// "VFT" and, in the highest byte, the version.
constexpr std::uint32_t kMagic = 0x544656;
constexpr std::uint32_t kVersion = 1;

template <typename... Text>
absl::Status Bad(const Text&... text) {
  return absl::InvalidArgumentError(absl::StrCat("a fence ticket ", text...));
}

}  // namespace

std::string FenceTicket::Describe() const {
  return absl::StrCat("fence at ", offset, " of segment ", segment, ", slot ",
                      slot, ".", generation, ", domain ", domain.ToString());
}

FenceTicketBytes EncodeFenceTicket(const FenceTicket& ticket) {
  // The block's, but for the head, and for the size at its end.
  const PoolTicketBytes block = EncodePoolTicket(BlockOf(ticket));
  FenceTicketBytes out;
  std::memcpy(out.data(), block.data(), out.size());
  const std::uint32_t head = internal::LittleEndian(kMagic | (kVersion << 24));
  std::memcpy(out.data(), &head, sizeof(head));
  return out;
}

absl::StatusOr<FenceTicket> DecodeFenceTicket(
    absl::Span<const std::uint8_t> in) {
  using internal::TakeAt;
  if (in.size() != kFenceTicketBytes) {
    return Bad("has ", kFenceTicketBytes, " bytes; these are ", in.size());
  }
  const auto head = TakeAt<std::uint32_t>(in.data(), 0);
  const std::uint32_t version = head >> 24;
  if ((head & 0xffffff) != kMagic) {
    return Bad("starts with \"VFT\"; these bytes do not");
  }
  if (version > kVersion) {
    return absl::UnimplementedError(absl::StrCat(
        "a fence ticket of version ", version, "; this vmmshare reads version ",
        kVersion, ". Update it to the owner's"));
  }
  if (version != kVersion) return Bad("has no version ", version);
  FenceTicket ticket;
  ticket.segment = TakeAt<std::uint32_t>(in.data(), 4);
  std::memcpy(ticket.domain.bytes.data(), in.data() + 8, 16);
  ticket.slot = TakeAt<std::uint32_t>(in.data(), 24);
  ticket.generation = TakeAt<std::uint64_t>(in.data(), 32);
  ticket.offset = TakeAt<std::uint64_t>(in.data(), 40);
  if (TakeAt<std::uint32_t>(in.data(), 28) != 0) {
    return Bad("has zeros at byte 28; these bytes do not");
  }
  if (ticket.segment == 0) return Bad("of segment 0");
  if (ticket.slot >= kPoolSlots) {
    return Bad("of slot ", ticket.slot, "; there are ", kPoolSlots);
  }
  if (ticket.generation == 0) return Bad("of generation 0");
  if (ticket.offset % kFenceBytes != 0 ||
      ticket.offset > std::numeric_limits<std::uint64_t>::max() - kFenceBytes) {
    return Bad("at ", ticket.offset, ", where no fence can be: each has ",
               kFenceBytes, " bytes");
  }
  return ticket;
}

PoolTicket BlockOf(const FenceTicket& ticket) {
  return {ticket.domain,     ticket.segment, ticket.slot,
          ticket.generation, ticket.offset,  kFenceBytes};
}

FenceTicket FenceOf(const PoolTicket& block) {
  return {block.domain, block.segment, block.slot, block.generation,
          block.offset};
}

}  // namespace vmm
