// RestorableRegion: allocations of one device whose memory goes back to the
// device for a while, all at once, and comes back at the same addresses.
//
//   RestorableRegion region(device);
//   absl::StatusOr<CUdeviceptr> weights = region.Allocate(1 << 30);
//   absl::StatusOr<CUdeviceptr> biases = region.Allocate(1 << 20);
//   ...
//   absl::Status released = region.Release(Keep::kHostMemory);
//   ...                                      // The device's memory is free.
//   absl::Status restored = region.Restore();
//
// The addresses stay reserved meanwhile, so pointers, tensors and captured CUDA
// graphs are good again afterwards. In between nothing is there: a kernel that
// touches it ends its context. The memory is this process's alone; for memory
// that others import, see vmm/share/restorable.h.
#ifndef VMMSHARE_VMM_MEMORY_RESTORABLE_REGION_H_
#define VMMSHARE_VMM_MEMORY_RESTORABLE_REGION_H_

#include <cuda.h>

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "vmm/memory/device.h"
#include "vmm/memory/physical_memory.h"

namespace vmm {

// What becomes of the contents of memory that is released.
enum class Keep {
  kHostMemory,  // Copied to pinned memory of the host.
  kNothing,     // Lost: the program fills the memory when it is restored.
};

struct RestorableRegionStatistics {
  std::uint64_t allocations = 0;  // That are not freed.
  std::uint64_t bytes = 0;        // Of these, whether or not they are there.
  std::uint64_t kept = 0;         // Of these, bytes in pinned host memory now.
  bool is_released = false;
};

struct RestorableRegionOptions {
  // For each allocation, also when it is restored: see AllocationOptions.
  Rdma rdma = Rdma::kOff;
};

// Move-only, thread-safe. Release() and Restore() take as long as their copies do,
// and all other calls wait for them, also where a copy stands
// (docs/ordering.md#which-calls-stand-then). Destroying it gives everything back,
// addresses too.
class RestorableRegion {
 public:
  explicit RestorableRegion(Device device,
                            const RestorableRegionOptions& options = {});
  ~RestorableRegion();
  RestorableRegion(RestorableRegion&&) noexcept;
  RestorableRegion& operator=(RestorableRegion&&) noexcept;

  const Device& device() const;

  // Private memory of its own, `bytes` rounded up to the granularity (2 MiB on
  // current devices): for few, large pieces, such as an allocator asks for.
  // Errors as Allocation::Create(); FAILED_PRECONDITION while it is released.
  absl::StatusOr<CUdeviceptr> Allocate(std::uint64_t bytes);

  // Gives the memory back, and its addresses; while it is released, the copy and
  // the addresses. NOT_FOUND when no allocation begins there.
  // REQUIRES: all work that uses it has ended.
  absl::Status Free(CUdeviceptr address);

  // Copies the contents if they are to be kept, and gives all memory back to the
  // device. All or nothing:
  //   RESOURCE_EXHAUSTED   the host has too little memory for the copies
  //   FAILED_PRECONDITION  it is released
  //   else                 as the driver reports
  // After an error nothing has changed. Only if the driver fails to unmap, that is
  // told, and everything is released all the same. The copies are made in the
  // device's primary context, which is made if nobody has.
  // REQUIRES: all work that uses the memory has ended.
  absl::Status Release(Keep keep);

  // Makes memory for all allocations at the same addresses, with the contents
  // that were kept; with Keep::kNothing what they have is not specified. All or
  // nothing:
  //   RESOURCE_EXHAUSTED   not all of it fits
  //   FAILED_PRECONDITION  it is not released
  //   else                 as the driver reports
  // After an error it is released as before, and what was kept is kept.
  absl::Status Restore();

  RestorableRegionStatistics statistics() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace vmm

#endif  // VMMSHARE_VMM_MEMORY_RESTORABLE_REGION_H_
