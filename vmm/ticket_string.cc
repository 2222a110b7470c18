#include "vmm/ticket_string.h"

#include <algorithm>
#include <cstdint>
#include <utility>
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

constexpr absl::string_view kVersion = "1:";
constexpr std::size_t kMaxAddress = 1024;
constexpr std::size_t kCrcBytes = 4;

// A kind of string: what it begins with, where it comes from, and how many
// bytes come before the address.
struct Form {
  absl::string_view scheme;
  absl::string_view source;
  std::size_t bytes;
};
constexpr Form kAllocation = {"vmmshare:", "Publication::ticket()",
                              kTicketBytes};
constexpr Form kPool = {"vmmshare-pool:", "PoolPublication::ticket()",
                        sizeof(DomainId::bytes)};

absl::Status NoTicket(const Form& form, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(
      "not a usable ticket string: ", what, ". Expected the whole text that ",
      form.source, " returned, beginning with \"", form.scheme, kVersion,
      "\"."));
}

absl::Span<const std::uint8_t> Bytes(absl::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

std::string Format(const Form& form, std::vector<std::uint8_t> bytes,
                   const std::string& address) {
  platform::Check(
      !address.empty() && address.size() <= kMaxAddress,
      "a ticket string needs an endpoint address of 1 to 1024 bytes");
  WireWriter out(bytes);
  out.Put<std::uint16_t>(static_cast<std::uint16_t>(address.size()));
  out.PutBytes(Bytes(address));
  out.Put<std::uint32_t>(Crc32c(bytes));
  return absl::StrCat(
      form.scheme, kVersion,
      absl::WebSafeBase64Escape(absl::string_view(
          reinterpret_cast<const char*>(bytes.data()), bytes.size())));
}

struct Parsed {
  std::vector<std::uint8_t> bytes;
  std::string address;
};

absl::StatusOr<Parsed> Parse(const Form& form, absl::string_view text) {
  text = absl::StripAsciiWhitespace(text);
  if (!absl::ConsumePrefix(&text, form.scheme)) {
    return NoTicket(form,
                    absl::StrCat("it begins with \"",
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
    if (!is_number) return NoTicket(form, "it has no version");
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
    return NoTicket(form, "it is no URL-safe base64");
  }
  const absl::Span<const std::uint8_t> bytes = Bytes(decoded);
  if (bytes.size() < form.bytes + sizeof(std::uint16_t) + 1 + kCrcBytes) {
    return NoTicket(form,
                    absl::StrCat("it holds only ", bytes.size(), " bytes"));
  }
  WireReader crc_reader(bytes.subspan(bytes.size() - kCrcBytes));
  if (crc_reader.Take<std::uint32_t>() !=
      Crc32c(bytes.subspan(0, bytes.size() - kCrcBytes))) {
    return NoTicket(form, "its checksum is wrong");
  }
  WireReader reader(bytes.subspan(form.bytes));
  const auto length = reader.Take<std::uint16_t>();
  if (length == 0 || length > kMaxAddress ||
      reader.left() != length + kCrcBytes) {
    return NoTicket(form, absl::StrCat("its address has ", length, " bytes"));
  }
  return Parsed{{bytes.begin(), bytes.begin() + form.bytes},
                decoded.substr(form.bytes + sizeof(std::uint16_t), length)};
}

}  // namespace

std::string FormatTicketString(const AddressedTicket& ticket) {
  return Format(kAllocation, EncodeTicket(ticket.ticket), ticket.address);
}

absl::StatusOr<AddressedTicket> ParseTicketString(absl::string_view text) {
  absl::StatusOr<Parsed> parsed = Parse(kAllocation, text);
  if (!parsed.ok()) return parsed.status();
  absl::StatusOr<Ticket> ticket = DecodeTicket(parsed->bytes);
  if (!ticket.ok()) return ticket.status();
  return AddressedTicket{*std::move(ticket), std::move(parsed->address)};
}

std::string FormatPoolString(const AddressedPool& pool) {
  return Format(kPool, {pool.domain.bytes.begin(), pool.domain.bytes.end()},
                pool.address);
}

absl::StatusOr<AddressedPool> ParsePoolString(absl::string_view text) {
  absl::StatusOr<Parsed> parsed = Parse(kPool, text);
  if (!parsed.ok()) return parsed.status();
  AddressedPool pool;
  std::copy(parsed->bytes.begin(), parsed->bytes.end(),
            pool.domain.bytes.begin());
  pool.address = std::move(parsed->address);
  return pool;
}

}  // namespace vmm
