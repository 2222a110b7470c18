// Reading environment variables.
#ifndef VMMSHARE_PLATFORM_HOSTDRIVER_ENVIRONMENT_H_
#define VMMSHARE_PLATFORM_HOSTDRIVER_ENVIRONMENT_H_

#include <charconv>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace vmm::hostdriver {

// The value of an environment variable; nullptr when unset or empty.
inline const char* Value(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr || *value == '\0' ? nullptr : value;
}

// Stop()s, but for who asks first: vmmshareHostCheckSettings() answers it.
[[noreturn]] void BadValue(const char* name, const std::string& value,
                           const std::string& expected);

// The number that all of `text` spells.
template <typename Number>
std::optional<Number> ParseNumber(std::string_view text) {
  Number number{};
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || rest != end) return std::nullopt;
  return number;
}

inline std::vector<std::string_view> Split(std::string_view text,
                                           char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

}  // namespace vmm::hostdriver

#endif  // VMMSHARE_PLATFORM_HOSTDRIVER_ENVIRONMENT_H_
