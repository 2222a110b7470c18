// Descriptors: taking ownership of them, and what the kernel says of one; internal
// to platform/.
#ifndef VMMSHARE_PLATFORM_OS_DESCRIPTOR_POSIX_H_
#define VMMSHARE_PLATFORM_OS_DESCRIPTOR_POSIX_H_

#include <sys/types.h>

#include <cstdint>
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

// What the kernel itself knows of a descriptor. Asks no file system.
struct FileLook {
  mode_t mode = 0;  // Type and rights.
  std::uint64_t size = 0;
  unsigned device_major = 0, device_minor = 0;  // Of a device.
};
absl::StatusOr<FileLook> LookAt(const OsHandle& handle);

// "a file", "a socket": what a mode says, for messages.
const char* TypeName(mode_t mode);

// What system calls take; -1 when it owns nothing.
inline int Fd(const OsHandle& handle) {
  return handle.has_value() ? static_cast<int>(handle.get()) : -1;
}

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_OS_DESCRIPTOR_POSIX_H_
