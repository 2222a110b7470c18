#ifndef VMMSHARE_VMM_MEMORY_INTERNAL_POINTER_ORDINAL_H_
#define VMMSHARE_VMM_MEMORY_INTERNAL_POINTER_ORDINAL_H_

#include <cuda.h>

#include "absl/status/statusor.h"
#include "platform/cuda/driver.h"

namespace vmm {

// The ordinal of the device on which memory of the driver's was made or opened,
// as the driver says.
absl::StatusOr<int> PointerOrdinal(const platform::Driver& driver,
                                   CUdeviceptr pointer);

}  // namespace vmm

#endif  // VMMSHARE_VMM_MEMORY_INTERNAL_POINTER_ORDINAL_H_
