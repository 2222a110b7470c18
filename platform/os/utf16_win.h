// Text for the calls of Windows, which take UTF-16. Not installed: for the
// project alone.
#ifndef VMMSHARE_PLATFORM_OS_UTF16_WIN_H_
#define VMMSHARE_PLATFORM_OS_UTF16_WIN_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace vmm::platform {

// `text`, which is UTF-8, as UTF-16. INVALID_ARGUMENT when it is not UTF-8, or
// has a zero in it, where a call would take it to end.
absl::StatusOr<std::wstring> ToUtf16(std::string_view text);

// `text` as UTF-8. What is not UTF-16 becomes U+FFFD: this is for messages.
std::string ToUtf8(std::wstring_view text);

// `word` for a command line, such that the C runtime of the new process splits
// it off again as it is.
std::wstring QuotedWord(std::wstring_view word);

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_OS_UTF16_WIN_H_
