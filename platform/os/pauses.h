// Pauses: between two looks at what nobody tells of, as whether a GPU has passed
// a point.
#ifndef VMMSHARE_PLATFORM_OS_PAUSES_H_
#define VMMSHARE_PLATFORM_OS_PAUSES_H_

#include <algorithm>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "platform/os/deadline.h"

namespace vmm::platform {

// Of 10 us at first, twice as long each time, and of 1 ms at most.
// Thread-compatible.
class Pauses {
 public:
  // Sleeps, and not beyond `deadline`.
  void Take(Deadline deadline) {
    absl::SleepFor(std::min(next_, deadline.Left()));
    next_ = std::min(next_ * 2, absl::Milliseconds(1));
  }

 private:
  absl::Duration next_ = absl::Microseconds(10);
};

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_OS_PAUSES_H_
