#include "vmm/job/internal/barrier_protocol.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "vmm/job/barrier.h"
#include "vmm/memory/internal/wire.h"

namespace vmm::barrier {
namespace {

constexpr std::uint32_t kVersion = 2;
constexpr std::size_t kMaxString = 2048;

}  // namespace

std::vector<std::uint8_t> EncodeOffer(const Offer& offer) {
  std::vector<std::uint8_t> bytes;
  WireWriter out(bytes);
  out.Put<std::uint32_t>(kVersion);
  out.Put<std::uint32_t>(offer.rank);
  out.Put<std::uint32_t>(static_cast<std::uint32_t>(offer.fences.size()));
  for (const FenceTicket& fence : offer.fences) {
    out.PutBytes(EncodeFenceTicket(fence));
  }
  out.Put<std::uint16_t>(static_cast<std::uint16_t>(offer.pool.size()));
  out.PutText(offer.pool);
  return bytes;
}

absl::StatusOr<Offer> DecodeOffer(absl::Span<const std::uint8_t> bytes) {
  WireReader in(bytes);
  const auto version = in.Take<std::uint32_t>();
  // None of version 0 was ever written.
  if (!in.overrun() && version != kVersion && version != 0) {
    return absl::UnimplementedError(
        absl::StrCat("a barrier of version ", version,
                     " is offered; this vmmshare reads version ", kVersion,
                     ". Use the same release in all ranks"));
  }
  Offer offer;
  offer.rank = in.Take<std::uint32_t>();
  const auto size = in.Take<std::uint32_t>();
  if (version != kVersion || size < 2 || size > kMaxBarrierMembers ||
      offer.rank == 0 || offer.rank >= size) {
    return absl::DataLossError(absl::StrCat("no barrier is offered: rank ",
                                            offer.rank, " of ", size,
                                            ", version ", version));
  }
  for (std::uint32_t i = 0; i < size; ++i) {
    FenceTicketBytes ticket;
    in.TakeBytes(absl::MakeSpan(ticket));
    absl::StatusOr<FenceTicket> fence = DecodeFenceTicket(ticket);
    if (!fence.ok()) {
      return absl::DataLossError(
          absl::StrCat("a barrier is offered in which rank ", i,
                       " has no fence: ", fence.status().message()));
    }
    offer.fences.push_back(*fence);
  }
  std::vector<std::uint8_t> text(
      std::min<std::size_t>(in.Take<std::uint16_t>(), kMaxString));
  in.TakeBytes(absl::MakeSpan(text));
  offer.pool.assign(text.begin(), text.end());
  if (in.overrun() || in.left() != 0) {
    return absl::DataLossError(
        absl::StrCat("no barrier is offered: ", bytes.size(), " bytes for ",
                     size, " ranks"));
  }
  return offer;
}

std::vector<std::uint8_t> EncodeGone(const Gone& gone) {
  std::vector<std::uint8_t> bytes;
  WireWriter out(bytes);
  out.Put<std::uint32_t>(gone.rank);
  out.Put<std::uint32_t>(gone.left ? 1 : 0);
  return bytes;
}

absl::StatusOr<Gone> DecodeGone(absl::Span<const std::uint8_t> bytes,
                                std::size_t size) {
  WireReader in(bytes);
  const auto rank = in.Take<std::uint32_t>();
  const auto left = in.Take<std::uint32_t>();
  if (in.overrun() || in.left() != 0 || rank >= size || left > 1) {
    return absl::DataLossError(absl::StrCat("rank 0 says in ", bytes.size(),
                                            " bytes that rank ", rank, " of ",
                                            size, " has gone"));
  }
  return Gone{rank, left == 1};
}

}  // namespace vmm::barrier
