#include "docs/examples/process.h"

#include <algorithm>

#include "absl/time/clock.h"

namespace examples {

absl::StatusOr<vmm::platform::Channel> ChildProcess::Accept(
    vmm::platform::Listener& listener, absl::Time deadline) {
  for (;;) {
    const absl::Time slice =
        std::min(deadline, absl::Now() + absl::Milliseconds(200));
    absl::StatusOr<vmm::platform::Channel> channel = listener.Accept(slice);
    if (channel.ok() || !absl::IsDeadlineExceeded(channel.status()) ||
        absl::Now() >= deadline) {
      return channel;
    }
    absl::StatusOr<bool> exited = process_.HasExited();
    if (!exited.ok()) return exited.status();
    if (*exited) {
      absl::Status status = Wait(deadline);
      return status.ok()
                 ? absl::AbortedError("the child ended without connecting")
                 : status;
    }
  }
}

}  // namespace examples
