// The operating system's error codes as absl::Status.
#ifndef VMMSHARE_PLATFORM_OS_OS_ERROR_H_
#define VMMSHARE_PLATFORM_OS_OS_ERROR_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace vmm::platform {

// The status for OS error `code` (errno, GetLastError) of `call`, written with
// its arguments: "connect(/run/user/0/vmmshare/x)". `advice`, if any, says
// what to do about it. REQUIRES: `code` is not 0.
absl::Status OsError(int code, absl::string_view call,
                     absl::string_view advice = "");

// What the system said of the call that failed last. It is read when this is made,
// and so before the text that names the call: to make that may set another code.
//
//   if (fd < 0) return LastError().Of(absl::StrCat("open(", path, ")"));
class LastError {
 public:
  LastError();
  int code() const { return code_; }
  // As OsError().
  absl::Status Of(absl::string_view call, absl::string_view advice = "") const {
    return OsError(code_, call, advice);
  }

 private:
  int code_;
};

// A limit of this process that is met or nearly so, and what to raise it to: "2 of
// the 14 descriptors that this process may have open (ulimit -n) are left; allow it
// at least 64". For calls that do not say why they failed, as a driver's; OsError()
// adds it by itself where the code says so. Empty when no limit is near, and on
// Windows, which has none of the kind.
std::string NearLimit();

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_OS_OS_ERROR_H_
