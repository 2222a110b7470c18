// Handle: what names memory on an NVLink fabric. 64 plain bytes.
//
// A value, not a resource: it can be copied, printed and sent by any medium,
// and nothing is closed. It is also no secret: within one IMEX channel it can
// be guessed, so the channel is the boundary (docs/security.md).
#ifndef VMMSHARE_FABRIC_HANDLE_H_
#define VMMSHARE_FABRIC_HANDLE_H_

#include <cuda.h>

#include <array>
#include <cstdint>

namespace vmm::fabric {

struct Handle {
  std::array<std::uint8_t, CU_IPC_HANDLE_SIZE> bytes{};
  friend bool operator==(const Handle&, const Handle&) = default;
};
static_assert(sizeof(Handle) == sizeof(CUmemFabricHandle),
              "a fabric handle is what the driver calls CUmemFabricHandle");

}  // namespace vmm::fabric

#endif  // VMMSHARE_FABRIC_HANDLE_H_
