#include <fcntl.h>
#include <sys/stat.h>
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

absl::StatusOr<FileLook> LookAt(const OsHandle& handle) {
  struct statx about {};
  if (::statx(Fd(handle), "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC,
              STATX_TYPE | STATX_MODE | STATX_SIZE, &about) != 0) {
    return LastError().Of(absl::StrCat("statx(descriptor ", handle.get(), ")"));
  }
  return FileLook{about.stx_mode, about.stx_size, about.stx_rdev_major,
                  about.stx_rdev_minor};
}

const char* TypeName(mode_t mode) {
  if (S_ISREG(mode)) return "a file";
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISSOCK(mode)) return "a socket";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISBLK(mode)) return "a block device";
  if (S_ISCHR(mode)) return "a character device";
  if ((mode & S_IFMT) == 0) return "a kernel object, as eventfds and dma-bufs";
  return "an object of unknown type";
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
