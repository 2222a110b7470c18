#include "vmm/tool/ask_device.h"

#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"
#include "vmm/memory/internal/device_attribute.h"

namespace vmm::tool {

absl::StatusOr<int> AskNumber(const Device& device,
                              CUdevice_attribute attribute) {
  return DeviceAttribute(device, attribute, absl::StrCat(attribute));
}

absl::StatusOr<bool> AskAttribute(const Device& device,
                                  CUdevice_attribute attribute) {
  ASSIGN_OR_RETURN(const int value, AskNumber(device, attribute));
  return value != 0;
}

}  // namespace vmm::tool
