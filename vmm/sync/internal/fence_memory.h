// Memory: what fences are in, and what the host does with it; internal to vmm/.
//
// Streams signal and wait at a fence's address wherever that is. The host looks
// at memory of the host itself (fence_words.h), and at memory of a device through
// the driver (fence_device_memory.h).
#ifndef VMMSHARE_VMM_SYNC_INTERNAL_FENCE_MEMORY_H_
#define VMMSHARE_VMM_SYNC_INTERNAL_FENCE_MEMORY_H_

#include <cuda.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "platform/os/deadline.h"
#include "vmm/sync/fence.h"
#include "vmm/sync/internal/fence_words.h"

namespace vmm::fence {

// Thread-safe. `fence` is the address of its words, and `raw` a value with the
// base. What asks a device fails as the driver does, or with DEADLINE_EXCEEDED
// when the device has not answered by the deadline.
class Memory {
 public:
  virtual ~Memory() = default;

  virtual FencePlace place() const = 0;
  // How far a fence is, as far as is known without asking a device.
  virtual Progress Glance(CUdeviceptr fence, std::uint64_t base) = 0;
  // How far it is now. Sees to it that a fence that is abandoned stays so for
  // streams.
  virtual absl::StatusOr<Progress> Look(CUdeviceptr fence, std::uint64_t base,
                                        Deadline deadline) = 0;
  // Passes a moment, less if the value comes: for a wait that looks all the
  // time.
  virtual void Linger(CUdeviceptr fence, std::uint64_t raw) = 0;
  // Signals from the host. The value was less when it was looked at.
  virtual absl::Status Raise(CUdeviceptr fence, std::uint64_t raw,
                             Deadline deadline) = 0;
  virtual absl::Status Abandon(CUdeviceptr fence, std::uint64_t base,
                               Deadline deadline) = 0;
};

// Memory of the host that the CPU has mapped at the devices' address. Nothing
// there fails.
Memory& HostMemory();

// REQUIRES: it is in such memory.
Words& WordsAt(CUdeviceptr fence);

}  // namespace vmm::fence

#endif  // VMMSHARE_VMM_SYNC_INTERNAL_FENCE_MEMORY_H_
