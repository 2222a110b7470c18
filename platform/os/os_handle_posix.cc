#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <limits>

#include "absl/strings/str_cat.h"
#include "platform/base/check.h"
#include "platform/os/descriptor_posix.h"
#include "platform/os/os_error.h"
#include "platform/os/os_handle.h"

namespace vmm::platform {
namespace {

// Below are the standard streams.
constexpr int kLowestOwn = 3;

}  // namespace

const bool kNativeHandleIsPosixFd = true;

// Not a number that only looks like a descriptor once it is cut to an int.
bool OsHandleTraits::Holds(Value value) {
  return value >= 0 && value <= std::numeric_limits<int>::max();
}

void OsHandleTraits::Close(Value value) {
  // On Linux the descriptor is free again after any other error, EINTR
  // included: trying once more could close another thread's new descriptor.
  if (::close(static_cast<int>(value)) != 0 && errno == EBADF) {
    Die(absl::StrCat("descriptor ", value,
                     " was closed by somebody who does not own it"));
  }
}

OsHandle AdoptDescriptor(int fd) {
  if (fd < 0 || fd >= kLowestOwn) return OsHandle::Adopt(fd);
  const int higher = ::fcntl(fd, F_DUPFD_CLOEXEC, kLowestOwn);
  const int error = errno;
  ::close(fd);
  errno = error;
  return OsHandle::Adopt(higher);
}

absl::StatusOr<OsHandle> OpenForReading(const std::string& path) {
  OsHandle file =
      AdoptDescriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.has_value()) return file;
  return LastError().Of(absl::StrCat("open(", path, ")"));
}

absl::StatusOr<OsHandle> Duplicate(const OsHandle& handle) {
  const int fd = ::fcntl(Fd(handle), F_DUPFD_CLOEXEC, kLowestOwn);
  if (fd < 0) {
    return LastError().Of(
        absl::StrCat("fcntl(", handle.get(), ", F_DUPFD_CLOEXEC)"));
  }
  return OsHandle::Adopt(fd);
}

}  // namespace vmm::platform
