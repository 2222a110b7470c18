// Being asked to end: SIGTERM, and SIGINT and SIGHUP unless they are ignored (by
// a script, which has SIGINT ignored for what it starts in the background, and
// by nohup); on Windows Ctrl-C, Ctrl-Break and the closing of the console, after
// which Windows grants some seconds. For programs that must put things in order
// first.
#ifndef VMMSHARE_PLATFORM_OS_TERMINATION_H_
#define VMMSHARE_PLATFORM_OS_TERMINATION_H_

#include "absl/status/status.h"
#include "platform/os/deadline.h"

namespace vmm::platform {

// From here on such a request does not end the process but waits for
// WaitForTermination(). REQUIRES: called before any other thread is started,
// for threads take this over from the one that starts them.
void HoldTermination();

// Returns once this process has been asked to end; DEADLINE_EXCEEDED.
// REQUIRES: HoldTermination() was called; one thread waits.
absl::Status WaitForTermination(Deadline deadline);

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_OS_TERMINATION_H_
