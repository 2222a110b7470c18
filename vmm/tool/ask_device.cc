#include "vmm/tool/ask_device.h"

#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"

namespace vmm::tool {

absl::StatusOr<int> AskNumber(const Device& device,
                              CUdevice_attribute attribute) {
  int value = 0;
  RETURN_IF_ERROR(
      device.driver().Error(device.driver()->cuDeviceGetAttribute(
                                &value, attribute, device.cuda_device()),
                            absl::StrCat("cuDeviceGetAttribute(", attribute,
                                         ", device=", device.ordinal(), ")")));
  return value;
}

absl::StatusOr<bool> AskAttribute(const Device& device,
                                  CUdevice_attribute attribute) {
  ASSIGN_OR_RETURN(const int value, AskNumber(device, attribute));
  return value != 0;
}

}  // namespace vmm::tool
