#include "vmm/ticket_string.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "platform/check.h"
#include "vmm/wire.h"

namespace vmm {
namespace {

constexpr absl::string_view kScheme = "vmmshare:";
constexpr absl::string_view kVersion = "1:";
constexpr std::size_t kMaxAddress = 1024;
constexpr std::size_t kCrcBytes = 4;

absl::Status NoTicket(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(
      "not a usable ticket string: ", what,
      ". Expected the whole text that Publication::ticket() returned, "
      "beginning with \"",
      kScheme, kVersion, "\"."));
}

absl::Span<const std::uint8_t> Bytes(absl::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

}  // namespace

std::string FormatTicketString(const AddressedTicket& ticket) {
  platform::Check(
      !ticket.address.empty() && ticket.address.size() <= kMaxAddress,
      "a ticket string needs an endpoint address of 1 to 1024 bytes");
  std::vector<std::uint8_t> bytes = EncodeTicket(ticket.ticket);
  WireWriter out(bytes);
  out.Put<std::uint16_t>(static_cast<std::uint16_t>(ticket.address.size()));
  out.PutBytes(Bytes(ticket.address));
  out.Put<std::uint32_t>(Crc32c(bytes));
  return absl::StrCat(
      kScheme, kVersion,
      absl::WebSafeBase64Escape(absl::string_view(
          reinterpret_cast<const char*>(bytes.data()), bytes.size())));
}

absl::StatusOr<AddressedTicket> ParseTicketString(absl::string_view text) {
  text = absl::StripAsciiWhitespace(text);
  if (!absl::ConsumePrefix(&text, kScheme)) {
    return NoTicket(absl::StrCat("it begins with \"",
                                 absl::CHexEscape(text.substr(0, 16)), "\""));
  }
  if (!absl::ConsumePrefix(&text, kVersion)) {
    // Without its colon the number may have been cut.
    const std::size_t colon = text.find(':');
    const absl::string_view version =
        colon == absl::string_view::npos ? "" : text.substr(0, colon);
    const bool is_number =
        !version.empty() && version.size() <= 5 && version[0] != '0' &&
        std::all_of(version.begin(), version.end(),
                    [](unsigned char c) { return absl::ascii_isdigit(c); });
    if (!is_number) return NoTicket("it has no version");
    return absl::UnimplementedError(absl::StrCat(
        "the ticket string has version ", version,
        "; this vmmshare reads version 1. Use the same or a newer release in "
        "the importer."));
  }
  std::string decoded;
  // Encoded again and compared, because several texts decode to the same
  // bytes, and only one of them is what was published.
  if (!absl::WebSafeBase64Unescape(text, &decoded) ||
      absl::WebSafeBase64Escape(decoded) != text) {
    return NoTicket("it is no URL-safe base64");
  }
  const absl::Span<const std::uint8_t> bytes = Bytes(decoded);
  if (bytes.size() < kTicketBytes + sizeof(std::uint16_t) + 1 + kCrcBytes) {
    return NoTicket(absl::StrCat("it holds only ", bytes.size(), " bytes"));
  }
  WireReader crc_reader(bytes.subspan(bytes.size() - kCrcBytes));
  if (crc_reader.Take<std::uint32_t>() !=
      Crc32c(bytes.subspan(0, bytes.size() - kCrcBytes))) {
    return NoTicket("its checksum is wrong");
  }
  WireReader reader(bytes.subspan(kTicketBytes));
  const auto length = reader.Take<std::uint16_t>();
  if (length == 0 || length > kMaxAddress ||
      reader.left() != length + kCrcBytes) {
    return NoTicket(absl::StrCat("its address has ", length, " bytes"));
  }
  AddressedTicket addressed;
  addressed.address =
      decoded.substr(kTicketBytes + sizeof(std::uint16_t), length);
  absl::StatusOr<Ticket> ticket = DecodeTicket(bytes.subspan(0, kTicketBytes));
  if (!ticket.ok()) return ticket.status();
  addressed.ticket = *std::move(ticket);
  return addressed;
}

}  // namespace vmm
