// Many copies within a device by few kernels; internal to vmm/.
//
// 20,000 copies of 700 KB take 66 to 76 ms by cuMemcpyDtoDAsync, on any number of
// streams, and 68 by cuMemcpyBatchAsync; one copy of as much takes 9.3, and by this
// kernel they take 10.2 (measured on H100; docs/weights.md).
#ifndef VMMSHARE_VMM_WEIGHTS_INTERNAL_COPY_KERNEL_H_
#define VMMSHARE_VMM_WEIGHTS_INTERNAL_COPY_KERNEL_H_

#include "absl/status/statusor.h"
#include "vmm/memory/device.h"
#include "vmm/weights/internal/piece_kernel.h"

namespace vmm::weights {

// Copies each piece `from` where it is `to` go. Errors as PieceKernel::Load().
absl::StatusOr<PieceKernel> LoadCopyKernel(const Device& device);

}  // namespace vmm::weights

#endif  // VMMSHARE_VMM_WEIGHTS_INTERNAL_COPY_KERNEL_H_
