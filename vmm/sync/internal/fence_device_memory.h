// DeviceMemory: fences in a device's memory, which no CPU reads; internal to
// vmm/. fence_device_words.h has how the host gets there.
//
// There is no compare-and-swap from the host. So what CPUs do in host memory as
// one step is two here, and what somebody else does in between is lost if it
// was a smaller value's signal: see docs/ordering.md.
#ifndef VMMSHARE_VMM_SYNC_INTERNAL_FENCE_DEVICE_MEMORY_H_
#define VMMSHARE_VMM_SYNC_INTERNAL_FENCE_DEVICE_MEMORY_H_

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "platform/base/mutex.h"
#include "platform/os/deadline.h"
#include "vmm/memory/device.h"
#include "vmm/sync/internal/fence_device_words.h"
#include "vmm/sync/internal/fence_kernels.h"
#include "vmm/sync/internal/fence_memory.h"

namespace vmm::fence {

// What one thread at a time has. Others wait for it by a deadline each, for who has
// it may be waiting for a device that does not answer.
class ABSL_LOCKABLE Turn {
 public:
  // False: it could not be had by then.
  bool TakeBy(Deadline deadline) ABSL_EXCLUSIVE_TRYLOCK_FUNCTION(true);
  void Give() ABSL_UNLOCK_FUNCTION();

 private:
  platform::Mutex mutex_;
  platform::CondVar given_;
  bool taken_ ABSL_GUARDED_BY(mutex_) = false;
};

// Thread-safe: one thread at a time asks the device.
class DeviceMemory final : public Memory {
 public:
  // `count` fences from `first` on, to which `device` has access.
  static absl::StatusOr<std::unique_ptr<DeviceMemory>> Make(
      const Device& device, CUdeviceptr first, std::uint64_t count);

  FencePlace place() const override { return FencePlace::kDeviceMemory; }
  Progress Glance(CUdeviceptr fence, std::uint64_t base) override;
  absl::StatusOr<Progress> Look(CUdeviceptr fence, std::uint64_t base,
                                Deadline deadline) override;
  // A look takes long enough.
  void Linger(CUdeviceptr, std::uint64_t) override {}
  absl::Status Raise(CUdeviceptr fence, std::uint64_t raw,
                     Deadline deadline) override;
  absl::Status Abandon(CUdeviceptr fence, std::uint64_t base,
                       Deadline deadline) override;
  // Has `kernels` loaded, by a launch of each on the own stream.
  absl::Status Warm(const FenceKernels& kernels, Deadline deadline);
  // Makes all fences new. REQUIRES: nobody uses them.
  absl::Status Clear(Deadline deadline);

 private:
  // What this process saw last.
  struct Seen {
    std::atomic<std::uint64_t> value{0};
    std::atomic<bool> abandoned{false};
  };

  DeviceMemory(CUdeviceptr first, std::uint64_t count,
               std::unique_ptr<DeviceWords> words)
      : first_(first), seen_(count), words_(std::move(words)) {}

  Seen& SeenOf(CUdeviceptr fence);
  void Note(CUdeviceptr fence, const Progress& progress);

  // With the context current:
  absl::StatusOr<Progress> Judge(CUdeviceptr fence, std::uint64_t base,
                                 Deadline deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(turn_);
  // Writes what an abandoned fence has: the end, and where it came.
  absl::Status End(CUdeviceptr fence, std::uint64_t reached, std::uint64_t end,
                   Deadline deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(turn_);

  const CUdeviceptr first_;
  std::vector<Seen> seen_;
  Turn turn_;
  const std::unique_ptr<DeviceWords> words_ ABSL_PT_GUARDED_BY(turn_);
};

}  // namespace vmm::fence

#endif  // VMMSHARE_VMM_SYNC_INTERNAL_FENCE_DEVICE_MEMORY_H_
