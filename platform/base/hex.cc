#include "platform/base/hex.h"

#include <cstddef>

namespace vmm::platform {
namespace {

constexpr absl::string_view kDigits = "0123456789abcdef";

}  // namespace

std::optional<std::string> BytesFromHex(absl::string_view text) {
  if (text.size() % 2 != 0) return std::nullopt;
  std::string bytes;
  bytes.reserve(text.size() / 2);
  for (std::size_t i = 0; i < text.size(); i += 2) {
    const std::size_t high = kDigits.find(text[i]);
    const std::size_t low = kDigits.find(text[i + 1]);
    if (high == kDigits.npos || low == kDigits.npos) return std::nullopt;
    bytes.push_back(static_cast<char>(16 * high + low));
  }
  return bytes;
}

}  // namespace vmm::platform
