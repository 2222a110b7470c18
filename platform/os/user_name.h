// Users as people name them.
#ifndef VMMSHARE_PLATFORM_OS_USER_NAME_H_
#define VMMSHARE_PLATFORM_OS_USER_NAME_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "platform/os/process.h"

namespace vmm::platform {

// The user whom `text` names: a uid that can be somebody's (0 to 4294967294) or
// the name of a user whom this system knows; on Windows a SID. INVALID_ARGUMENT
// for everything else, with what was expected. When the system's users cannot be
// looked up, what the error of that is: PERMISSION_DENIED where their list may not
// be read, RESOURCE_EXHAUSTED, INTERNAL, UNAVAILABLE or UNKNOWN.
absl::StatusOr<UserId> ParseUser(absl::string_view text);

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_OS_USER_NAME_H_
