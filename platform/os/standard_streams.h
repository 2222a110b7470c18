// What a daemon says on its standard streams, for which it waits for nobody.
#ifndef VMMSHARE_PLATFORM_OS_STANDARD_STREAMS_H_
#define VMMSHARE_PLATFORM_OS_STANDARD_STREAMS_H_

#include <cstdio>

#include "absl/strings/string_view.h"

namespace vmm::platform {

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
