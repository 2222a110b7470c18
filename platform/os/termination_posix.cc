#include <signal.h>

#include <algorithm>

#include "platform/base/check.h"
#include "platform/os/termination.h"

namespace vmm::platform {
namespace {

sigset_t Requests() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  // A signal that is ignored would be kept all the same once it is blocked.
  for (const int signal : {SIGINT, SIGHUP}) {
    struct sigaction before = {};
    if (::sigaction(signal, nullptr, &before) == 0 &&
        before.sa_handler != SIG_IGN) {
      sigaddset(&set, signal);
    }
  }
  return set;
}

}  // namespace

void HoldTermination() {
  const sigset_t set = Requests();
  Check(pthread_sigmask(SIG_BLOCK, &set, nullptr) == 0,
        "SIGTERM, SIGINT and SIGHUP cannot be blocked");
}

absl::Status WaitForTermination(Deadline deadline) {
  const sigset_t set = Requests();
  for (;;) {
    const absl::Duration left = deadline.Left();
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
