// The stream-ordered allocators that are compared with each other: vmmshare's
// pool, and the driver's own.
#ifndef VMMSHARE_BENCH_ALLOCATORS_H_
#define VMMSHARE_BENCH_ALLOCATORS_H_

#include <cuda.h>

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "vmm/memory/device.h"

namespace bench {

// A new one begins with nothing.
class Allocator {
 public:
  virtual ~Allocator() = default;
  virtual absl::StatusOr<CUdeviceptr> Allocate(std::uint64_t size,
                                               CUstream stream) = 0;
  virtual absl::Status Free(CUdeviceptr block, CUstream stream) = 0;
  virtual std::uint64_t Reserved() = 0;  // Bytes held now, or at the most.
};

absl::StatusOr<std::unique_ptr<Allocator>> MakeVmmsharePool(
    const vmm::Device& device);

// cuMemAllocFromPoolAsync from a pool that keeps what it has, as programs that
// care for speed set it.
absl::StatusOr<std::unique_ptr<Allocator>> MakeDriverPool(
    const vmm::Device& device);

}  // namespace bench

#endif  // VMMSHARE_BENCH_ALLOCATORS_H_
