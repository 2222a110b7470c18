// Sets the time of day of this program alone, as an administrator or a time
// server sets that of a machine: its clock_gettime() is in the way of the C
// library's. A wait inside the kernel until a time of day would not notice; a
// rule of tests/lint sees to it that there is none.
#ifndef VMMSHARE_TESTS_SUPPORT_STEPPED_CLOCK_POSIX_H_
#define VMMSHARE_TESTS_SUPPORT_STEPPED_CLOCK_POSIX_H_

#include <functional>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace vmm::testing {

// The time of day is `step` later than the machine's from now on.
void StepClock(absl::Duration step);

// Calls `wait` with a deadline 0.3 s from now. While it waits the clock is set
// back by 20 s, and in a second call forward. Expects that it ends with
// DEADLINE_EXCEEDED, neither before its deadline nor long after it.
void ExpectToWaitOutASteppedClock(
    const std::function<absl::Status(absl::Time deadline)>& wait);

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_SUPPORT_STEPPED_CLOCK_POSIX_H_
