#include "platform/os/utf16_win.h"

#include <windows.h>

#include <limits>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace vmm::platform {

absl::StatusOr<std::wstring> ToUtf16(std::string_view text) {
  if (text.empty()) return std::wstring();
  const auto size = static_cast<int>(text.size());
  const int units = text.size() > std::numeric_limits<int>::max() ||
                            text.find('\0') != std::string_view::npos
                        ? 0
                        : ::MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS,
                                                text.data(), size, nullptr, 0);
  if (units <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", absl::CHexEscape(std::string(text.substr(0, 256))),
                     "\" is not UTF-8 text without zeros"));
  }
  std::wstring wide(static_cast<std::size_t>(units), L'\0');
  ::MultiByteToWideChar(CP_UTF8, 0, text.data(), size, wide.data(), units);
  return wide;
}

std::string ToUtf8(std::wstring_view text) {
  const auto units = static_cast<int>(text.size());
  const int size = ::WideCharToMultiByte(CP_UTF8, 0, text.data(), units,
                                         nullptr, 0, nullptr, nullptr);
  std::string narrow(static_cast<std::size_t>(size > 0 ? size : 0), '\0');
  if (!narrow.empty()) {
    ::WideCharToMultiByte(CP_UTF8, 0, text.data(), units, narrow.data(), size,
                          nullptr, nullptr);
  }
  return narrow;
}

std::wstring QuotedWord(std::wstring_view word) {
  std::wstring quoted = L"\"";
  // A backslash counts as one unless a quote follows, at once or after more.
  std::size_t backslashes = 0;
  for (const wchar_t c : word) {
    if (c == L'\\') {
      ++backslashes;
    } else {
      if (c == L'"') quoted.append(backslashes + 1, L'\\');
      backslashes = 0;
    }
    quoted += c;
  }
  quoted.append(backslashes, L'\\');
  return quoted + L"\"";
}

}  // namespace vmm::platform
