#include "vmm/memory/internal/held_context.h"

#include <cstddef>

#include "platform/base/status_macros.h"

namespace vmm {

absl::StatusOr<ContextHeld> HoldContextOf(const Device& device) {
  ContextHeld held;
  CUdevice here = 0;
  std::size_t free = 0, total = 0;
  // Of a context that was destroyed the driver still tells the device (measured),
  // and nothing else.
  if (device.driver()->cuCtxGetDevice(&here) == CUDA_SUCCESS &&
      here == device.cuda_device() &&
      device.driver()->cuMemGetInfo(&free, &total) == CUDA_SUCCESS) {
    return held;
  }
  ASSIGN_OR_RETURN(held.primary, PrimaryContext::Retain(device));
  ASSIGN_OR_RETURN(held.current, held.primary->MakeCurrent());
  return held;
}

}  // namespace vmm
