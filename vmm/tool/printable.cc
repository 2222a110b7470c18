#include "vmm/tool/printable.h"

#include <cstddef>
#include <cstdint>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace vmm::tool {
namespace {

// Bytes of the character that `text` begins with; 0 for one that a terminal may
// obey, and for what is no UTF-8.
std::size_t LengthOfFirst(absl::string_view text) {
  const auto byte = [text](std::size_t i) -> std::uint32_t {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0;
  };
  const std::uint32_t first = byte(0);
  if (first < 0x80) return first >= 0x20 && first != 0x7f ? 1 : 0;
  if (first < 0xc2 || first > 0xf4) return 0;
  const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  std::uint32_t code = first & (0x7fu >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    code = code << 6 | (byte(i) & 0x3f);
  }
  // Below it are those of C1, and what is written longer than it needs to be.
  const std::uint32_t least = length == 2   ? 0xa0
                              : length == 3 ? 0x800
                                            : 0x10000;
  const bool is_surrogate = code >= 0xd800 && code <= 0xdfff;
  return code < least || code > 0x10ffff || is_surrogate ? 0 : length;
}

}  // namespace

std::string Escaped(absl::string_view text) {
  std::string escaped;
  while (!text.empty()) {
    const std::size_t length = LengthOfFirst(text);
    if (length > 1) {
      absl::StrAppend(&escaped, text.substr(0, length));
    } else {
      absl::StrAppend(&escaped, absl::CHexEscape(text.substr(0, 1)));
    }
    text.remove_prefix(length > 1 ? length : 1);
  }
  return escaped;
}

std::string Masked(absl::string_view text) {
  std::string masked;
  while (!text.empty()) {
    const std::size_t length = LengthOfFirst(text);
    absl::StrAppend(&masked, length == 0 ? "?" : text.substr(0, length));
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return masked;
}

}  // namespace vmm::tool
