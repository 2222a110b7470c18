// CopyKernel: many copies within a device by few kernels; internal to vmm/.
//
// 20,000 copies of 700 KB take 66 to 76 ms by cuMemcpyDtoDAsync, on any number of
// streams, and 68 by cuMemcpyBatchAsync; one copy of as much takes 9.3, and by this
// kernel they take 10.2 (measured on H100; docs/weights.md). What is to be copied
// travels in the kernel's parameters, so that no table has to stay anywhere.
#ifndef VMMSHARE_VMM_WEIGHTS_INTERNAL_COPY_KERNEL_H_
#define VMMSHARE_VMM_WEIGHTS_INTERNAL_COPY_KERNEL_H_

#include <cuda.h>

#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "vmm/memory/device.h"
#include "vmm/memory/internal/kernel_library.h"

namespace vmm::weights {

struct DeviceCopy {
  CUdeviceptr to = 0;
  CUdeviceptr from = 0;
  std::uint64_t bytes = 0;
};

// Thread-safe.
class CopyKernel {
 public:
  // Cheap but for the first time. As KernelLibrary::Of(), and
  // UNIMPLEMENTED also with drivers before CUDA 12.1.
  static absl::StatusOr<CopyKernel> Load(const Device& device);

  // Puts copies on `stream` of the device, in no order among them. Of none it is
  // a launch that does nothing, by which the driver loads the kernel. REQUIRES:
  // the device may read and write there, and none is of 0 bytes.
  absl::Status Run(CUstream stream, absl::Span<const DeviceCopy> copies) const;

 private:
  CopyKernel(KernelLibrary library, CUfunction kernel, unsigned int blocks)
      : library_(std::move(library)), kernel_(kernel), blocks_(blocks) {}

  KernelLibrary library_;
  CUfunction kernel_;
  unsigned int blocks_;
};

}  // namespace vmm::weights

#endif  // VMMSHARE_VMM_WEIGHTS_INTERNAL_COPY_KERNEL_H_
