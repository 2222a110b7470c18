#include <time.h>

#include "platform/os/coarse_clock.h"

namespace vmm::platform {

std::uint64_t CoarseNow() {
  timespec now{};
  // Cannot fail: every Linux has this clock, and the vDSO reads it.
  ::clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1000 +
         static_cast<std::uint64_t>(now.tv_nsec) / 1'000'000;
}

}  // namespace vmm::platform
