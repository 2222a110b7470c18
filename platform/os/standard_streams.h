// Standard streams that are closed, broken, or that nobody reads.
#ifndef VMMSHARE_PLATFORM_OS_STANDARD_STREAMS_H_
#define VMMSHARE_PLATFORM_OS_STANDARD_STREAMS_H_

#include <cstdio>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace vmm::platform {

// From here on nothing else is opened in the place of a standard stream that is
// closed, which goes on to fail: a driver's memory, say, into which the process
// would print. NOT_FOUND without /dev/null. May be called at any time.
absl::Status HoldStandardStreams();

// The same, or the end of the process; and a reader that has gone, or a file
// that has grown as large as it may, is an error of the call that writes and no
// longer the end of the process (SIGPIPE, SIGXFSZ). For programs, first of all;
// a library leaves that to them. Programs that are started inherit it.
void SurviveBrokenOutputs();

enum class Written {
  kWhole,
  kNotYet,  // Nothing: nobody reads what was written before.
  kFailed,  // Nothing, or a part: it cannot be written to.
};

// Writes the first 4,096 bytes of `text` to `stream`, stdout or stderr, whose
// buffer it passes by; a pipe that can be written to takes as many at once. On
// Windows a pipe that is full is waited for.
Written WriteWithoutWaiting(std::FILE* stream, absl::string_view text);

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_OS_STANDARD_STREAMS_H_
