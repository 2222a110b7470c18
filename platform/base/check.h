// Misuse ends the program: Check() and Die().
//
// A runtime failure is an absl::Status. A broken precondition ("REQUIRES" in a
// docstring) is a bug in the caller, and going on would corrupt memory that
// other processes use too; so it prints one line and aborts.
#ifndef VMMSHARE_PLATFORM_BASE_CHECK_H_
#define VMMSHARE_PLATFORM_BASE_CHECK_H_

#include <source_location>
#include <string_view>

namespace vmm::platform {

// Prints "vmmshare: FILE:LINE: MESSAGE" to standard error and aborts.
[[noreturn]] void Die(
    std::string_view message,
    std::source_location where = std::source_location::current());

// Dies with `message` unless `holds`.
inline void Check(
    bool holds, std::string_view message,
    std::source_location where = std::source_location::current()) {
  if (!holds) [[unlikely]] {
    Die(message, where);
  }
}

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_BASE_CHECK_H_
