// LastPoint: whether this process's own GPU has passed what a buffer of a ring
// was used for; internal to vmm/.
//
// Both sides of a ring can write to its fences, so these tell what the peer
// says. Events of one's own tell what is so, one for each time that a buffer was
// used. That two times have the same CUstream does not say that the later one comes
// after the earlier: a new stream may have the value of one that was destroyed, whose
// work goes on.
#ifndef VMMSHARE_VMM_QUEUE_INTERNAL_LAST_POINT_H_
#define VMMSHARE_VMM_QUEUE_INTERNAL_LAST_POINT_H_

#include <cuda.h>

#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "platform/cuda/driver.h"
#include "platform/os/deadline.h"
#include "vmm/memory/internal/recorded_event.h"

namespace vmm::ring {

// INVALID_ARGUMENT for CU_STREAM_PER_THREAD.
absl::Status CheckStream(CUstream stream);
// FAILED_PRECONDITION while `stream` is captured into a graph: each of its launches
// would wait for one and the same item, and the work behind it is not done now.
absl::Status CheckMayAcquire(const platform::Driver& driver, CUstream stream);

// Move-only; thread-compatible.
class LastPoint {
 public:
  // The buffer was used by what is on `stream` now. After an error nothing is
  // recorded: who takes the buffer for used all the same calls Lose().
  absl::Status Record(const platform::Driver& driver, CUstream stream);
  // After Record() of the same stream: what has come on it since is recorded too.
  // Lose() where that cannot be.
  void Extend(const platform::Driver& driver, CUstream stream);
  // The buffer was used by more than what is recorded.
  void Lose() { lost_ = true; }

  // Returns once the GPU has passed all that was recorded. DEADLINE_EXCEEDED:
  // it has not, or `give_up`. Otherwise why the driver cannot say, or that after
  // Lose() nobody can.
  absl::Status Await(Deadline deadline,
                     const std::function<bool()>& give_up = nullptr);

 private:
  // Which the GPU has not been seen to pass, the oldest first.
  std::vector<OwnedEvent> points_;
  bool lost_ = false;
};

}  // namespace vmm::ring

#endif  // VMMSHARE_VMM_QUEUE_INTERNAL_LAST_POINT_H_
