// Whether the GPU has passed a fence's signal; internal to vmm/.
#ifndef VMMSHARE_VMM_RING_PASSING_H_
#define VMMSHARE_VMM_RING_PASSING_H_

#include <cstdint>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "vmm/fence.h"

namespace vmm::ring {

// Whether `fence` reaches `value` by `deadline`, abandoned or not: a signal
// that is on a stream when the fence is abandoned comes all the same.
inline bool HasPassed(Fence& fence, std::uint64_t value, absl::Time deadline) {
  for (;;) {
    const absl::Status reached = fence.WaitOnHost(value, deadline);
    if (reached.ok()) return true;
    if (!absl::IsAborted(reached) || absl::Now() >= deadline) return false;
    absl::SleepFor(absl::Milliseconds(1));
  }
}

}  // namespace vmm::ring

#endif  // VMMSHARE_VMM_RING_PASSING_H_
