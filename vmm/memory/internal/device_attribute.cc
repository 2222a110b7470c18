#include "vmm/memory/internal/device_attribute.h"

#include "absl/strings/str_cat.h"

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

}  // namespace vmm
