// Waiting for kernel objects until a deadline; internal to platform/.
#ifndef VMMSHARE_PLATFORM_OS_WAIT_WIN_H_
#define VMMSHARE_PLATFORM_OS_WAIT_WIN_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "platform/os/cancels.h"
#include "platform/os/deadline.h"
#include "platform/os/os_handle.h"

namespace vmm::platform {

// What WaitForMultipleObjects takes, less two for cancel events.
inline constexpr std::size_t kMostWaited = 62;

// Waits until one of `handles` is signalled and answers its index, the lowest
// if there are several. CANCELLED when one of `cancels` is signalled, which
// is looked at first; DEADLINE_EXCEEDED with `what` ("a message from
// process 12") when nothing happened until `deadline`. A deadline in the past
// looks once and does not wait. REQUIRES: at most kMostWaited handles.
absl::StatusOr<std::size_t> WaitForHandles(
    absl::Span<const std::intptr_t> handles, Deadline deadline,
    const Cancels& cancels, absl::string_view what);

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_OS_WAIT_WIN_H_
