#include <signal.h>

#include <algorithm>

#include "absl/time/clock.h"
#include "platform/check.h"
#include "platform/termination.h"

namespace vmm::platform {
namespace {

sigset_t Requests() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  return set;
}

}  // namespace

void HoldTermination() {
  const sigset_t set = Requests();
  Check(pthread_sigmask(SIG_BLOCK, &set, nullptr) == 0,
        "SIGTERM and SIGINT cannot be blocked");
}

absl::Status WaitForTermination(absl::Time deadline) {
  const sigset_t set = Requests();
  for (;;) {
    const absl::Duration left = deadline - absl::Now();
    // In pieces that every timespec holds.
    const timespec wait = absl::ToTimespec(
        std::clamp(left, absl::ZeroDuration(), absl::Hours(1)));
    if (sigtimedwait(&set, nullptr, &wait) > 0) return absl::OkStatus();
    if (left <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError(
          "nobody asked this process to end before the deadline");
    }
  }
}

}  // namespace vmm::platform
