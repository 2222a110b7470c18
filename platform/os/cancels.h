// What ends a wait from another thread: a CancelEvent's handles; and the end of a
// process.
#ifndef VMMSHARE_PLATFORM_OS_CANCELS_H_
#define VMMSHARE_PLATFORM_OS_CANCELS_H_

#include "platform/os/os_handle.h"

namespace vmm::platform {

// Each may be null. A value; the handles are somebody else's.
struct Cancels {
  const OsHandle* own = nullptr;
  const OsHandle* parent = nullptr;
  const OsHandle* process = nullptr;  // Not on Windows.
};

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_OS_CANCELS_H_
