// The text that names what an endpoint serves: one codec for all kinds of it;
// internal to vmm/.
//
// SCHEME "2:" and, in URL-safe base64: what the kind has to say (its body), the
// invitation, a checksum. docs/wire_format.md has the byte table.
#ifndef VMMSHARE_VMM_SHARE_INTERNAL_ADDRESSED_STRING_H_
#define VMMSHARE_VMM_SHARE_INTERNAL_ADDRESSED_STRING_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "vmm/share/servable.h"

namespace vmm {

// A kind of text.
struct AddressedForm {
  absl::string_view scheme;  // What it begins with.
  absl::string_view what;    // It is a ... string, for messages.
  std::size_t body_bytes;
};

struct AddressedString {
  std::vector<std::uint8_t> body;  // AddressedForm::body_bytes.
  ShareInvitation invitation;
};

// REQUIRES: the address has 1 to 1024 bytes; access is kRead or kReadWrite.
std::string FormatAddressed(const AddressedForm& form,
                            absl::Span<const std::uint8_t> body,
                            const ShareInvitation& invitation);

// Total: any text is answered. White space around the string is dropped, as a
// file or `cat` leaves it there. INVALID_ARGUMENT for text that is none, or was
// changed in any character; UNIMPLEMENTED for another version.
absl::StatusOr<AddressedString> ParseAddressed(const AddressedForm& form,
                                               absl::string_view text);

}  // namespace vmm

#endif  // VMMSHARE_VMM_SHARE_INTERNAL_ADDRESSED_STRING_H_
