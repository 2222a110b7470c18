// What a daemon says on standard error, for which it waits for nobody.
#ifndef VMMSHARE_PLATFORM_OS_STANDARD_ERROR_H_
#define VMMSHARE_PLATFORM_OS_STANDARD_ERROR_H_

#include "absl/strings/string_view.h"

namespace vmm::platform {

// Writes the first 4,096 bytes of `text`, which a pipe that can be written to
// takes at once, and returns true; or false when nobody reads what was written before, or it
// cannot be written. On Windows a pipe that is full is waited for.
bool WriteErrorWithoutWaiting(absl::string_view text);

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_OS_STANDARD_ERROR_H_
