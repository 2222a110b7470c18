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
  const absl::StatusOr<int> node =
      DeviceAttribute(device, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, "HOST_NUMA_ID");
  // Drivers before CUDA 12.2 do not know what is asked.
  if (platform::ResultOf(node.status()) == CUDA_ERROR_INVALID_VALUE) return 0;
  RETURN_IF_ERROR(node.status());
  return std::max(*node, 0);
}

}  // namespace vmm
