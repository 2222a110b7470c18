// Waits for all of a device's work, as cudaFree() does; internal to vmm/.
#ifndef VMMSHARE_VMM_MEMORY_INTERNAL_DEVICE_WORK_H_
#define VMMSHARE_VMM_MEMORY_INTERNAL_DEVICE_WORK_H_

#include "absl/status/status.h"
#include "vmm/memory/device.h"

namespace vmm {

// Waits until the GPU has done what is now on any stream of the device's primary
// context, non-blocking ones too; not at all where nobody has that context. For
// who unmaps what may be used on streams of which it knows nothing. CUDA has no such
// wait with a deadline. Errors as the driver answers: nobody knows then.
//
// It waits by cuMemFreeHost(), which leaves captures whole. cuCtxSynchronize() and
// cuCtxRecordEvent() are refused beside a capture, and lose it, in relaxed mode too.
// Other threads' launches in that context wait meanwhile, as beside cuMemFree(): so
// it is for whoever frees, and for no thread in the background. (All measured on an
// H200, driver 580.)
absl::Status AwaitDeviceWork(const Device& device);

}  // namespace vmm

#endif  // VMMSHARE_VMM_MEMORY_INTERNAL_DEVICE_WORK_H_
