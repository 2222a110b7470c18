#include "vmm/share/internal/addressed_string.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "platform/base/check.h"
#include "platform/base/status_macros.h"
#include "vmm/memory/internal/wire.h"

namespace vmm {
namespace {

constexpr absl::string_view kVersion = "2:";
constexpr std::size_t kMaxAddress = 1024;
constexpr std::size_t kKeyBytes =
    sizeof(ShareKey::place) + sizeof(ShareKey::secret);
// Key, access and the address's length.
constexpr std::size_t kFixedBytes = kKeyBytes + 1 + 2;

absl::Status NoTicket(const AddressedForm& form, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(
      "not a usable ", form.what, " string: ", why,
      ". Expected the whole text of the share, as its owner has it, beginning "
      "with \"",
      form.scheme, kVersion, "\"."));
}

absl::Span<const std::uint8_t> Bytes(absl::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

// What is said of a text that has the scheme, and not this version.
absl::Status OtherVersion(const AddressedForm& form, absl::string_view text) {
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
      "the ", form.what, " string has version ", version,
      "; this vmmshare reads version ", absl::StripSuffix(kVersion, ":"),
      ". Use the same release in the owner and in the importer."));
}

// What keeps `text`, which follows the scheme and the version, from being URL-safe
// base64. All of it is a key, but a character that cannot be in one.
std::string NoBase64(const AddressedForm& form, absl::string_view text) {
  const std::size_t before = form.scheme.size() + kVersion.size();
  const std::string size = absl::StrCat(before + text.size(), " characters");
  const auto* const odd =
      std::find_if_not(text.begin(), text.end(), [](unsigned char c) {
        return absl::ascii_isalnum(c) || c == '-' || c == '_';
      });
  if (odd == text.end()) {
    return absl::StrCat("its ", size,
                        " are no whole URL-safe base64, so some are missing "
                        "or too many");
  }
  return absl::StrCat("of its ", size, ", number ",
                      before + (odd - text.begin()) + 1, ", \"",
                      absl::CHexEscape(absl::string_view(odd, 1)),
                      "\", is none of URL-safe base64");
}

// The bytes of a text whose checksum is right.
absl::StatusOr<std::string> Decode(const AddressedForm& form,
                                   absl::string_view text) {
  std::string decoded;
  // Encoded again and compared, because several texts decode to the same
  // bytes, and only one of them is what was handed out.
  if (!absl::WebSafeBase64Unescape(text, &decoded) ||
      absl::WebSafeBase64Escape(decoded) != text) {
    return NoTicket(form, NoBase64(form, text));
  }
  const absl::Span<const std::uint8_t> bytes = Bytes(decoded);
  if (bytes.size() < form.body_bytes + kFixedBytes + 1 + kCrcBytes) {
    return NoTicket(form,
                    absl::StrCat("it holds only ", bytes.size(), " bytes"));
  }
  if (!TrailingCrc32c(bytes).is_right()) {
    return NoTicket(form, "its checksum is wrong");
  }
  decoded.resize(bytes.size() - kCrcBytes);
  return decoded;
}

}  // namespace

std::string FormatAddressed(const AddressedForm& form,
                            absl::Span<const std::uint8_t> body,
                            const ShareInvitation& invitation) {
  const std::string& address = invitation.address;
  platform::Check(
      !address.empty() && address.size() <= kMaxAddress,
      "a ticket string needs an endpoint address of 1 to 1024 bytes");
  platform::Check(invitation.access != Access::kNone,
                  "a ticket string opens something for reading at least");
  std::vector<std::uint8_t> bytes(body.begin(), body.end());
  WireWriter out(bytes);
  out.PutBytes(invitation.key.place);
  out.PutBytes(invitation.key.secret);
  out.Put(static_cast<std::uint8_t>(invitation.access));
  out.Put(static_cast<std::uint16_t>(address.size()));
  out.PutText(address);
  out.Put(Crc32c(bytes));
  return absl::StrCat(
      form.scheme, kVersion,
      absl::WebSafeBase64Escape(absl::string_view(
          reinterpret_cast<const char*>(bytes.data()), bytes.size())));
}

absl::StatusOr<AddressedString> ParseAddressed(const AddressedForm& form,
                                               absl::string_view text) {
  text = absl::StripAsciiWhitespace(text);
  if (!absl::ConsumePrefix(&text, form.scheme)) {
    return NoTicket(form,
                    absl::StrCat("it begins with \"",
                                 absl::CHexEscape(text.substr(0, 16)), "\""));
  }
  if (!absl::ConsumePrefix(&text, kVersion)) return OtherVersion(form, text);
  ASSIGN_OR_RETURN(const std::string decoded, Decode(form, text));
  WireReader in(Bytes(decoded));
  AddressedString parsed;
  parsed.body.resize(form.body_bytes);
  in.TakeBytes(absl::MakeSpan(parsed.body));
  ShareInvitation& invitation = parsed.invitation;
  in.TakeBytes(absl::MakeSpan(invitation.key.place));
  in.TakeBytes(absl::MakeSpan(invitation.key.secret));
  invitation.access = static_cast<Access>(in.Take<std::uint8_t>());
  if (invitation.access != Access::kRead &&
      invitation.access != Access::kReadWrite) {
    return NoTicket(form, "it opens neither for reading nor for writing");
  }
  const auto length = in.Take<std::uint16_t>();
  if (length == 0 || length > kMaxAddress || in.left() != length) {
    return NoTicket(form, absl::StrCat("its address has ", length, " bytes"));
  }
  invitation.address = decoded.substr(decoded.size() - length);
  return parsed;
}

}  // namespace vmm
