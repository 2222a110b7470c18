// CoarseNow: a clock that costs a few nanoseconds and no system call.
#ifndef VMMSHARE_PLATFORM_OS_COARSE_CLOCK_H_
#define VMMSHARE_PLATFORM_OS_COARSE_CLOCK_H_

#include <cstdint>

namespace vmm::platform {

// Milliseconds since a moment that all processes of this machine share (those
// of another time namespace are off by its offset). Never goes back. Moves on
// in steps of up to 16 ms: a timer tick of the system's. Thread-safe.
std::uint64_t CoarseNow();

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_OS_COARSE_CLOCK_H_
