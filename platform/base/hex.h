// Hexadecimal text to bytes.
//
// Abseil's own function that returns a string is deprecated in newer releases,
// and the one that replaces it is missing in older ones.
#ifndef VMMSHARE_PLATFORM_BASE_HEX_H_
#define VMMSHARE_PLATFORM_BASE_HEX_H_

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace vmm::platform {

// The bytes that absl::BytesToHexString() made `text` of. Nothing if it could
// not have: an odd number of characters, or one that is not in 0-9 and a-f.
std::optional<std::string> BytesFromHex(absl::string_view text);

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_BASE_HEX_H_
