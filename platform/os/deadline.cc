#include "platform/os/deadline.h"

#include <algorithm>

#include "absl/time/clock.h"

namespace vmm::platform {
namespace {

// Longer than any program runs, short enough for every kernel's clock.
constexpr absl::Duration kLongestSlice = absl::Hours(24 * 365);

absl::Duration Now() {
  return absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

}  // namespace

Deadline::Deadline(absl::Time time) : Deadline(In(time - absl::Now())) {}

Deadline Deadline::In(absl::Duration time) { return Deadline(Now() + time); }

absl::Duration Deadline::Left() const {
  return std::max(at_ - Now(), absl::ZeroDuration());
}

std::chrono::nanoseconds Deadline::Slice() const {
  return absl::ToChronoNanoseconds(std::min(Left(), kLongestSlice));
}

}  // namespace vmm::platform
