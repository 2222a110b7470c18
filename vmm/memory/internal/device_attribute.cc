#include "vmm/memory/internal/device_attribute.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"

namespace vmm {

absl::StatusOr<int> DeviceAttribute(const Device& device,
                                    CUdevice_attribute attribute,
                                    absl::string_view name) {
  int value = 0;
  const CUresult r = device.driver()->cuDeviceGetAttribute(
      &value, attribute, device.cuda_device());
  if (r == CUDA_SUCCESS) return value;
  return device.driver().Error(
      r, absl::StrCat("cuDeviceGetAttribute(", name,
                      ", device=", device.ordinal(), ")"));
}

absl::StatusOr<int> HostNodeOf(const Device& device) {
  // Before it, nobody knows what is asked.
  if (device.driver().version() < kHostMemorySince) return 0;
  ASSIGN_OR_RETURN(const int node,
                   DeviceAttribute(device, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID,
                                   "HOST_NUMA_ID"));
  return std::max(node, 0);
}

}  // namespace vmm
