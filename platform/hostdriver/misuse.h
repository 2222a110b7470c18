// The driver's last words.
#ifndef VMMSHARE_PLATFORM_HOSTDRIVER_MISUSE_H_
#define VMMSHARE_PLATFORM_HOSTDRIVER_MISUSE_H_

#include <cstdint>
#include <string>

namespace vmm::hostdriver {

// Prints "vmmshare host-memory driver: " and `text` to standard error and
// aborts. For what CUDA calls undefined, and for an environment that makes no
// sense.
[[noreturn]] void Stop(const std::string& text);

// `value` as "0x1f".
std::string Hex(std::uint64_t value);

}  // namespace vmm::hostdriver

#endif  // VMMSHARE_PLATFORM_HOSTDRIVER_MISUSE_H_
