// Descriptors, and taking ownership of them; internal to platform/.
#ifndef VMMSHARE_PLATFORM_OS_DESCRIPTOR_POSIX_H_
#define VMMSHARE_PLATFORM_OS_DESCRIPTOR_POSIX_H_

#include <string>

#include "absl/status/statusor.h"
#include "platform/os/os_handle.h"

namespace vmm::platform {

// Takes over what a system call returned: a new descriptor, which is
// close-on-exec, or a negative number, which owns nothing. In a program that was
// started with standard streams closed it may be 0, 1 or 2, and whatever prints
// would write into it: it is then exchanged for a higher one. Owns nothing, with
// errno set, when there is none left for that.
OsHandle AdoptDescriptor(int fd);

// Opens the file at `path` for reading; a FIFO does not hold up the call. Errors as
// OsError().
absl::StatusOr<OsHandle> OpenForReading(const std::string& path);

// What system calls take; -1 when it owns nothing.
inline int Fd(const OsHandle& handle) {
  return handle.has_value() ? static_cast<int>(handle.get()) : -1;
}

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_OS_DESCRIPTOR_POSIX_H_
