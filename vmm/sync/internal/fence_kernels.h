// FenceKernels: waits for fences by kernels in place of operations of a stream;
// internal to vmm/.
//
// A stream's operation asks a word now and then: two GPUs that wait for each other
// take 4 or 9 us, as it falls. A kernel of one thread asks all the time (measured
// on two H200: 3.9 us; docs/ordering.md).
#ifndef VMMSHARE_VMM_SYNC_INTERNAL_FENCE_KERNELS_H_
#define VMMSHARE_VMM_SYNC_INTERNAL_FENCE_KERNELS_H_

#include <cuda.h>

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "vmm/memory/internal/kernel_library.h"

namespace vmm::fence {

// A word to be signalled and one to be waited for, each with its value and the
// base; an address of 0 is left out. As the kernels have it.
struct Step {
  std::uint64_t signal_at = 0;
  std::uint64_t signal_value = 0;
  std::uint64_t wait_at = 0;
  std::uint64_t wait_value = 0;
};

// So many go into one launch.
inline constexpr std::size_t kMostSteps = 127;

// Thread-safe.
class FenceKernels {
 public:
  // As KernelLibrary::Of() and Find().
  static absl::StatusOr<std::unique_ptr<FenceKernels>> Load(
      const Device& device);

  // Signals once all work that is on `stream` now is done and its writes are
  // visible to every GPU and CPU, then waits. All signals are made before
  // anything waits. REQUIRES: at least one step, and at most kMostSteps.
  absl::Status Run(CUstream stream, absl::Span<const Step> steps) const;
  // Adds `value` to a word, as a signal otherwise.
  absl::Status Add(CUstream stream, CUdeviceptr at, std::uint64_t value) const;
  // Does nothing on `stream`, by each kernel: the driver may put off loading them
  // until then, and cannot while streams wait.
  absl::Status Warm(CUstream stream) const;

 private:
  FenceKernels(KernelLibrary library, CUfunction one, CUfunction many,
               CUfunction add)
      : library_(std::move(library)), one_(one), many_(many), add_(add) {}
  absl::Status RunMany(CUstream stream, absl::Span<const Step> steps) const;

  const KernelLibrary library_;
  const CUfunction one_;
  const CUfunction many_;
  const CUfunction add_;
};

}  // namespace vmm::fence

#endif  // VMMSHARE_VMM_SYNC_INTERNAL_FENCE_KERNELS_H_
