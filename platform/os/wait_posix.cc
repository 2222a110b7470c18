#include "platform/os/wait_posix.h"

#include <poll.h>

#include <cerrno>
#include <ctime>

#include "absl/strings/str_cat.h"
#include "platform/os/descriptor_posix.h"
#include "platform/os/os_error.h"

namespace vmm::platform {
namespace {

int DescriptorOf(const OsHandle* handle) {
  return handle != nullptr ? Fd(*handle) : -1;
}

}  // namespace

absl::StatusOr<short> WaitForEvents(const OsHandle& handle, short events,
                                    Deadline deadline, const Cancels& cancels,
                                    absl::string_view what) {
  for (;;) {
    // A negative descriptor is skipped by ppoll.
    pollfd watched[4] = {{Fd(handle), events, 0},
                         {DescriptorOf(cancels.own), POLLIN, 0},
                         {DescriptorOf(cancels.parent), POLLIN, 0},
                         {DescriptorOf(cancels.process), POLLIN, 0}};
    const absl::Duration left = absl::FromChrono(deadline.Slice());
    const timespec timeout = absl::ToTimespec(left);
    const int ready = ::ppoll(watched, 4, &timeout, nullptr);
    if (ready < 0) {
      // A storm of signals must not outlast the deadline.
      if (errno != EINTR)
        return LastError().Of(absl::StrCat("ppoll(", what, ")"));
      if (left > absl::ZeroDuration()) continue;
    }
    if (ready > 0 && (watched[1].revents | watched[2].revents) != 0) {
      return absl::CancelledError(
          absl::StrCat("waiting for ", what, " was cancelled"));
    }
    if (ready > 0 && watched[0].revents != 0) return watched[0].revents;
    if (ready > 0 && watched[3].revents != 0) {
      // What it did last may have come between the looks at the two.
      if (::poll(watched, 1, 0) > 0) return watched[0].revents;
      return absl::UnavailableError(absl::StrCat(
          "no ", what, ": the process that was to do it has ended"));
    }
    if (deadline.Passed()) {
      return absl::DeadlineExceededError(
          absl::StrCat("no ", what, " before the deadline"));
    }
  }
}

}  // namespace vmm::platform
