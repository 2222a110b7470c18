// What the driver says of a device; internal to vmm/.
#ifndef VMMSHARE_VMM_MEMORY_INTERNAL_DEVICE_ATTRIBUTE_H_
#define VMMSHARE_VMM_MEMORY_INTERNAL_DEVICE_ATTRIBUTE_H_

#include <cuda.h>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "vmm/memory/device.h"

namespace vmm {

// CU_DEVICE_ATTRIBUTE_ and `name`, which is for the message. Errors as the driver
// answers, which may not know what is asked.
absl::StatusOr<int> DeviceAttribute(const Device& device,
                                    CUdevice_attribute attribute,
                                    absl::string_view name);

// As CUDA_VERSION; cuda.h of 12.2 is the first with HOST_NUMA.
inline constexpr int kHostMemorySince = 12020;

// The NUMA node of the host next to the device; 0 where the driver knows of
// none. Errors as the driver answers.
absl::StatusOr<int> HostNodeOf(const Device& device);

}  // namespace vmm

#endif  // VMMSHARE_VMM_MEMORY_INTERNAL_DEVICE_ATTRIBUTE_H_
