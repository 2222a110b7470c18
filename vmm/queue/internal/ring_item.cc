#include "vmm/queue/internal/ring_item.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"
#include "vmm/memory/internal/wire.h"
#include "vmm/sync/fence.h"

namespace vmm {
namespace {

constexpr std::size_t kNumbers = 32;
static_assert(kNumbers + kPoolTicketBytes + 2 * kFenceTicketBytes ==
              kRingItemBytes);

template <typename... Text>
absl::Status Bad(const Text&... text) {
  return absl::InvalidArgumentError(
      absl::StrCat("an item of a ring ", text...));
}

}  // namespace

RingItemBytes EncodeRingItem(const RingItem& item) {
  RingItemBytes out;
  std::size_t at = 0;
  for (std::uint64_t value : {item.number, item.lap, item.size, item.tag}) {
    for (int shift = 0; shift < 64; shift += 8) {
      out[at++] = static_cast<std::uint8_t>(value >> shift);
    }
  }
  const auto put = [&out, &at](const auto& bytes) {
    std::copy(bytes.begin(), bytes.end(), out.begin() + at);
    at += bytes.size();
  };
  put(EncodePoolTicket(item.block));
  put(EncodeFenceTicket(item.full));
  put(EncodeFenceTicket(item.free));
  return out;
}

absl::StatusOr<RingItem> DecodeRingItem(absl::Span<const std::uint8_t> in) {
  if (in.size() != kRingItemBytes) {
    return Bad("has ", kRingItemBytes, " bytes; these are ", in.size());
  }
  RingItem item;
  WireReader numbers(in.first(kNumbers));
  item.number = numbers.Take<std::uint64_t>();
  item.lap = numbers.Take<std::uint64_t>();
  item.size = numbers.Take<std::uint64_t>();
  item.tag = numbers.Take<std::uint64_t>();
  in.remove_prefix(kNumbers);
  ASSIGN_OR_RETURN(item.block, DecodePoolTicket(in.first(kPoolTicketBytes)));
  in.remove_prefix(kPoolTicketBytes);
  ASSIGN_OR_RETURN(item.full, DecodeFenceTicket(in.first(kFenceTicketBytes)));
  ASSIGN_OR_RETURN(item.free, DecodeFenceTicket(in.subspan(kFenceTicketBytes)));
  if (item.number == 0) return Bad("of number 0");
  if (item.lap == 0 || item.lap > kMaxFenceValue || item.lap > item.number) {
    return Bad("number ", item.number, " of lap ", item.lap);
  }
  if (item.size > item.block.size) {
    return Bad("of ", item.size, " bytes in a block of ", item.block.size);
  }
  return item;
}

}  // namespace vmm
