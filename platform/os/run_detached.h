// RunDetached(): work that nobody waits for.
#ifndef VMMSHARE_PLATFORM_OS_RUN_DETACHED_H_
#define VMMSHARE_PLATFORM_OS_RUN_DETACHED_H_

#include <functional>

namespace vmm::platform {

// Runs `body`, which may not throw, on a thread that nobody joins. The library that
// this is in stays loaded from then on, for the thread may outlast everything else;
// what ends the process ends it too, wherever it is. It begins as StartQuietly() and
// NameThisThread() say. False, and `body` is not run, where no thread can be had.
// REQUIRES: a library of its own that `body` is in stays loaded, too.
bool RunDetached(const char* name, std::function<void()> body);

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_OS_RUN_DETACHED_H_
