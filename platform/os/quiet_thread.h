// What every thread of the library begins with; internal to platform/.
#ifndef VMMSHARE_PLATFORM_OS_QUIET_THREAD_H_
#define VMMSHARE_PLATFORM_OS_QUIET_THREAD_H_

#include "absl/functional/function_ref.h"

namespace vmm::platform {

// Calls `start`, which may throw. No signal of the process is delivered to the
// threads that it starts, nor to those that these start: they are for the threads
// of the program, which may wait for one with it blocked. A fault's own signals are
// delivered, so that a debugger's or a crash reporter's handler is called. Nothing
// but the call where there are no signals.
void StartQuietly(absl::FunctionRef<void()> start);

// What debuggers, profilers and `top -H` call this thread: at most 15 characters.
// Where the system has no names for threads, nothing.
void NameThisThread(const char* name);

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_OS_QUIET_THREAD_H_
