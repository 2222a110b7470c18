// Waiting for descriptors until a deadline; internal to platform/.
#ifndef VMMSHARE_PLATFORM_OS_WAIT_POSIX_H_
#define VMMSHARE_PLATFORM_OS_WAIT_POSIX_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "platform/os/cancels.h"
#include "platform/os/deadline.h"
#include "platform/os/os_handle.h"

namespace vmm::platform {

// Waits until one of `events` (POLLIN, POLLOUT; errors and hang-ups always
// count) holds for `handle`, and answers what holds. Signals do not end the
// wait. CANCELLED when one of `cancels` becomes readable, which is looked at
// first; UNAVAILABLE when nothing holds and its process has ended;
// DEADLINE_EXCEEDED with `what` ("a message from process 12") when
// nothing happened until `deadline`. A deadline in the past looks once and does
// not wait.
absl::StatusOr<short> WaitForEvents(const OsHandle& handle, short events,
                                    Deadline deadline, const Cancels& cancels,
                                    absl::string_view what);

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_OS_WAIT_POSIX_H_
