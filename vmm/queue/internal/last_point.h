// LastPoint: whether this process's own GPU has passed what a buffer of a ring
// was used for; internal to vmm/.
//
// Both sides of a ring can write to its fences, so these tell what the peer
// says. Events of one's own tell what is so.
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

// Move-only; thread-compatible.
class LastPoint {
 public:
  // The buffer was used by what is on `stream` now. After an error that is not
  // known to be passed, until this succeeds for the stream.
  absl::Status Record(const platform::Driver& driver, CUstream stream);

  // Returns once the GPU has passed all that was recorded. DEADLINE_EXCEEDED:
  // it has not, or `give_up`. Otherwise why the driver cannot say.
  absl::Status Await(Deadline deadline,
                     const std::function<bool()>& give_up = nullptr);

 private:
  struct Point {
    CUstream stream;
    OwnedEvent event;  // Empty: none could be recorded.
  };
  // One a stream, which the GPU has not been seen to pass.
  std::vector<Point> points_;
};

}  // namespace vmm::ring

#endif  // VMMSHARE_VMM_QUEUE_INTERNAL_LAST_POINT_H_
