// RetireQueue: gives memory back only after a stream has passed.
//
// cuMemUnmap is not ordered after work on streams: kernels that still run see
// their memory vanish and fail with an illegal address. Hand the memory over
// instead, and collect when it suits:
//
//   queue.Retire(std::move(buffer), stream);   // no wait
//   ...
//   queue.Collect();                           // frees what the GPU has passed
//
// Thread-compatible.
#ifndef VMMSHARE_VMM_SHARE_RETIRE_H_
#define VMMSHARE_VMM_SHARE_RETIRE_H_

#include <cuda.h>

#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "platform/cuda/driver.h"
#include "platform/os/deadline.h"
#include "vmm/memory/allocation.h"
#include "vmm/memory/mapping.h"
#include "vmm/share/imported_allocation.h"

namespace vmm {

class RetireQueue {
 public:
  explicit RetireQueue(platform::Driver driver);
  RetireQueue(RetireQueue&&) noexcept;
  RetireQueue& operator=(RetireQueue&&) = delete;
  // Waits until the GPU has passed everything, without a deadline: memory must
  // not go while it is in use. Drain() first to bound the wait.
  ~RetireQueue();

  // Takes `memory` and gives it back once all work that is on `stream` now is
  // done. Null is the current context's default stream. On failure (no context
  // is current, no event can be had, FAILED_PRECONDITION while `stream` is captured
  // into a graph), and where it throws std::bad_alloc, `memory` stays the
  // caller's, unchanged.
  absl::Status Retire(Allocation&& memory, CUstream stream);
  absl::Status Retire(ImportedAllocation&& memory, CUstream stream);
  absl::Status Retire(Mapping&& memory, CUstream stream);

  // Gives back what the GPU has passed. Does not wait. How many were given back. What
  // is on a stream whose work failed stays retired, and the first such error is
  // returned, once all else was looked at.
  absl::StatusOr<std::size_t> Collect();

  // Collects until nothing waits for its stream any more; an error as Collect()'s
  // then. DEADLINE_EXCEEDED with how much waits otherwise.
  absl::Status Drain(Deadline deadline);

  // How many are retired: those that wait, and those whose stream's work failed.
  std::size_t size() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace vmm

#endif  // VMMSHARE_VMM_SHARE_RETIRE_H_
