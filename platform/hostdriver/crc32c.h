// CRC-32C, as a kernel of vmmshare's own takes it.
#ifndef VMMSHARE_PLATFORM_HOSTDRIVER_CRC32C_H_
#define VMMSHARE_PLATFORM_HOSTDRIVER_CRC32C_H_

#include <cstddef>
#include <cstdint>

namespace vmm::hostdriver {

// What the register `state` is after these bytes; neither is inverted.
std::uint32_t ExtendCrc32c(std::uint32_t state, const std::byte* bytes,
                           std::size_t count);

}  // namespace vmm::hostdriver

#endif  // VMMSHARE_PLATFORM_HOSTDRIVER_CRC32C_H_
