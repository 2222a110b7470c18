// UTF-8, as RFC 3629 has it.
#ifndef VMMSHARE_PLATFORM_BASE_UTF8_H_
#define VMMSHARE_PLATFORM_BASE_UTF8_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace vmm::platform {

// How many bytes the sequence at the front of `text` has; 0 when there is none: a
// lone or overlong byte, a surrogate, past U+10FFFF, or no text.
std::size_t Utf8SequenceLength(absl::string_view text);

// Appends a code point. REQUIRES: at most U+10FFFF, no surrogate.
void AppendUtf8(std::uint32_t point, std::string* out);

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_BASE_UTF8_H_
