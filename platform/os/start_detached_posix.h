// StartDetached(): threads that nobody joins; internal to platform/.
#ifndef VMMSHARE_PLATFORM_OS_START_DETACHED_POSIX_H_
#define VMMSHARE_PLATFORM_OS_START_DETACHED_POSIX_H_

#include <functional>

namespace vmm::platform {

// Runs `body` on a thread that nobody joins, as StartQuietly() and NameThisThread()
// say: one that does not come back from the kernel must not be who is sent a
// signal. False, and `body` is not run, where no thread can be had.
bool StartDetached(const char* name, std::function<void()> body);

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_OS_START_DETACHED_POSIX_H_
