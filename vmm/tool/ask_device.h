// What attributes of a device say.
#ifndef VMMSHARE_VMM_TOOL_ASK_DEVICE_H_
#define VMMSHARE_VMM_TOOL_ASK_DEVICE_H_

#include <cuda.h>

#include "absl/status/statusor.h"
#include "vmm/memory/device.h"

namespace vmm::tool {

// As DeviceAttribute(); messages name it by its number.
absl::StatusOr<int> AskNumber(const Device& device,
                              CUdevice_attribute attribute);
absl::StatusOr<bool> AskAttribute(const Device& device,
                                  CUdevice_attribute attribute);

}  // namespace vmm::tool

#endif  // VMMSHARE_VMM_TOOL_ASK_DEVICE_H_
