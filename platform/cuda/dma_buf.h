// Mapped device memory as a dma-buf: what the system's other drivers take.
#ifndef VMMSHARE_PLATFORM_CUDA_DMA_BUF_H_
#define VMMSHARE_PLATFORM_CUDA_DMA_BUF_H_

#include <cuda.h>

#include <cstdint>

#include "absl/status/statusor.h"
#include "platform/cuda/driver.h"
#include "platform/os/os_handle.h"

namespace vmm::platform {

// Bytes of which the driver wants addresses and sizes to be multiples.
// UNIMPLEMENTED on Windows, which has no dma-buf.
absl::StatusOr<std::uint64_t> DmaBufGranularity();

// A descriptor of the mapped bytes [address, address + size), which lie in one
// chunk. `flags` are CUDA's CU_MEM_RANGE_FLAG_*. No child process inherits it.
// UNIMPLEMENTED on Windows, and for drivers before CUDA 11.7; otherwise as the
// driver reports. Thread-safe.
absl::StatusOr<OsHandle> ExportDmaBuf(const Driver& driver, CUdeviceptr address,
                                      std::uint64_t size,
                                      unsigned long long flags);

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_CUDA_DMA_BUF_H_
