// What mmap() failed with; internal to platform/.
#ifndef VMMSHARE_PLATFORM_OS_MAP_ERROR_POSIX_H_
#define VMMSHARE_PLATFORM_OS_MAP_ERROR_POSIX_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "platform/os/os_error.h"

namespace vmm::platform {

// As error.Of(), of mmap(): its EAGAIN is a limit of memory, RESOURCE_EXHAUSTED, and
// not one of threads.
absl::Status MapError(const LastError& error, absl::string_view call);

// What to do where memory that is mapped is locked as well, and no more of it may
// be. Empty where the limit cannot be read.
std::string LockedMemoryLimit();

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_OS_MAP_ERROR_POSIX_H_
