// The operating system's error codes as absl::Status.
#ifndef VMMSHARE_PLATFORM_OS_ERROR_H_
#define VMMSHARE_PLATFORM_OS_ERROR_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace vmm::platform {

// The status for OS error `code` (errno, GetLastError) of `call`, written with
// its arguments: "connect(/run/user/0/vmmshare/x)". `advice`, if any, says
// what to do about it. REQUIRES: `code` is not 0.
absl::Status OsError(int code, absl::string_view call,
                     absl::string_view advice = "");

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_OS_ERROR_H_
