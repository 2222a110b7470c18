// Being asked to end: SIGTERM and SIGINT, on Windows Ctrl-C, Ctrl-Break and the
// closing of the console. For programs that must put things in order first.
#ifndef VMMSHARE_PLATFORM_TERMINATION_H_
#define VMMSHARE_PLATFORM_TERMINATION_H_

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace vmm::platform {

// From here on such a request does not end the process but waits for
// WaitForTermination(). REQUIRES: called before any other thread is started,
// for threads take this over from the one that starts them.
void HoldTermination();

// Returns once this process has been asked to end; DEADLINE_EXCEEDED.
// REQUIRES: HoldTermination() was called; one thread waits.
absl::Status WaitForTermination(absl::Time deadline);

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_TERMINATION_H_
