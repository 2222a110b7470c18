#include "vmm/pool/pool_ticket.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace vmm {

std::string DomainId::ToString() const {
  return absl::BytesToHexString(absl::string_view(
      reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

std::string PoolTicket::Describe() const {
  return absl::StrCat("block of ", size, " bytes at ", offset, " of segment ",
                      segment, ", slot ", slot, ".", generation, ", domain ",
                      domain.ToString());
}

namespace internal {

absl::Status WhyNoPoolTicket(absl::Span<const std::uint8_t> in) {
  const auto bad = [](const auto&... text) {
    return absl::InvalidArgumentError(absl::StrCat("a pool ticket ", text...));
  };
  if (in.size() != kPoolTicketBytes) {
    return bad("has ", kPoolTicketBytes, " bytes; these are ", in.size());
  }
  const auto head = TakeAt<std::uint32_t>(in.data(), 0);
  const std::uint32_t version = head >> 24;
  if ((head & 0xffffff) != kPoolTicketMagic) {
    return bad("starts with \"VPT\"; these bytes do not");
  }
  if (version > kPoolTicketVersion) {
    return absl::UnimplementedError(absl::StrCat(
        "a pool ticket of version ", version, "; this vmmshare reads version ",
        kPoolTicketVersion, ". Update it to the owner's"));
  }
  if (version != kPoolTicketVersion) return bad("has no version ", version);
  if (TakeAt<std::uint32_t>(in.data(), 28) != 0) {
    return bad("has zeros at byte 28; these bytes do not");
  }
  if (TakeAt<std::uint32_t>(in.data(), 4) == 0) return bad("of segment 0");
  if (const auto slot = TakeAt<std::uint32_t>(in.data(), 24);
      slot >= kPoolSlots) {
    return bad("of slot ", slot, "; there are ", kPoolSlots);
  }
  if (TakeAt<std::uint64_t>(in.data(), 32) == 0) return bad("of generation 0");
  const auto size = TakeAt<std::uint64_t>(in.data(), 48);
  if (size == 0) return bad("of 0 bytes");
  return bad("of ", size, " bytes at ", TakeAt<std::uint64_t>(in.data(), 40),
             " ends beyond 64 bits");
}

}  // namespace internal
}  // namespace vmm
