// Plain bytes, such as CUDA's interprocess handles, as arguments of a child.
#ifndef VMMSHARE_TESTS_CONFORMANCE_BYTES_AS_TEXT_H_
#define VMMSHARE_TESTS_CONFORMANCE_BYTES_AS_TEXT_H_

#include <cstddef>
#include <cstring>
#include <optional>
#include <string>
#include <type_traits>

#include "absl/strings/escaping.h"
#include "absl/strings/string_view.h"
#include "platform/base/hex.h"

namespace vmm::testing {

template <typename T>
std::string ToText(const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(&value), sizeof(value)));
}

// The value that ToText() wrote.
template <typename T>
T FromText(const std::string& text) {
  static_assert(std::is_trivially_copyable_v<T>);
  const std::optional<std::string> bytes = platform::BytesFromHex(text);
  T value{};
  if (bytes.has_value() && bytes->size() == sizeof(value)) {
    std::memcpy(&value, bytes->data(), sizeof(value));
  }
  return value;
}

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_CONFORMANCE_BYTES_AS_TEXT_H_
