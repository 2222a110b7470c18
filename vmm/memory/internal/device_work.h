// Waits for all of a device's work, as cudaFree() does; internal to vmm/.
#ifndef VMMSHARE_VMM_MEMORY_INTERNAL_DEVICE_WORK_H_
#define VMMSHARE_VMM_MEMORY_INTERNAL_DEVICE_WORK_H_

#include "absl/status/status.h"
#include "vmm/memory/device.h"

namespace vmm {

// Waits until the GPU has done what is now on any stream of the device's primary
// context, non-blocking ones too; not at all where nobody has that context. For
// who unmaps what may be used on streams of which it knows nothing. CUDA has no such
// wait with a deadline. Breaks no capture: cuCtxSynchronize() is refused beside any, and loses it, also
// in relaxed mode, as cuCtxRecordEvent() does; cuMemFreeHost() waits as long, and
// leaves it whole. Other threads' launches in that context wait meanwhile, as beside
// cuMemFree() (all measured on an H200, driver 580): it is for whoever frees, and
// no thread in the background. Errors as the driver answers: nobody knows then.
absl::Status AwaitDeviceWork(const Device& device);

}  // namespace vmm

#endif  // VMMSHARE_VMM_MEMORY_INTERNAL_DEVICE_WORK_H_
