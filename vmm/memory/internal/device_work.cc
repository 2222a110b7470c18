#include "vmm/memory/internal/device_work.h"

#include <cuda.h>

#include "platform/base/status_macros.h"
#include "vmm/memory/stream_capture.h"

namespace vmm {

absl::Status AwaitDeviceWork(const Device& device) {
  ASSIGN_OR_RETURN(const bool is_active, PrimaryContext::IsActive(device));
  if (!is_active) return absl::OkStatus();
  ASSIGN_OR_RETURN(const PrimaryContext context,
                   PrimaryContext::Retain(device));
  ASSIGN_OR_RETURN(const CurrentContext current, context.MakeCurrent());
  const platform::Driver& driver = device.driver();
  const RelaxedCapture relaxed(driver);
  void* memory = nullptr;
  if (const CUresult r = driver->cuMemHostAlloc(&memory, 1, 0);
      r != CUDA_SUCCESS) {
    return driver.Error(r, "cuMemHostAlloc(1 byte), to wait for the device");
  }
  if (const CUresult r = driver->cuMemFreeHost(memory); r != CUDA_SUCCESS) {
    return driver.Error(r, "cuMemFreeHost(), to wait for the device");
  }
  return absl::OkStatus();
}

}  // namespace vmm
