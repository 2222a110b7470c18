#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "platform/check.h"
#include "platform/os_error.h"
#include "platform/os_handle.h"

namespace vmm::platform {

const bool kNativeHandleIsPosixFd = true;

bool OsHandleTraits::Holds(Value value) { return value >= 0; }

void OsHandleTraits::Close(Value value) {
  // On Linux the descriptor is free again after any other error, EINTR
  // included: trying once more could close another thread's new descriptor.
  if (::close(static_cast<int>(value)) != 0 && errno == EBADF) {
    Die(absl::StrCat("descriptor ", value,
                     " was closed by somebody who does not own it"));
  }
}

absl::StatusOr<OsHandle> Duplicate(const OsHandle& handle) {
  const int fd =
      ::fcntl(static_cast<int>(handle.get()), F_DUPFD_CLOEXEC, /*lowest=*/0);
  if (fd < 0) {
    return OsError(
        errno, absl::StrCat("fcntl(", handle.get(), ", F_DUPFD_CLOEXEC)"),
        errno == EMFILE ? "Raise the descriptor limit (ulimit -n)." : "");
  }
  return OsHandle::Adopt(fd);
}

}  // namespace vmm::platform
