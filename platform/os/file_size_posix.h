// Sizes of files and of memory that is a file; internal to platform/.
#ifndef VMMSHARE_PLATFORM_OS_FILE_SIZE_POSIX_H_
#define VMMSHARE_PLATFORM_OS_FILE_SIZE_POSIX_H_

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>

namespace vmm::platform {

// ftruncate(). EFBIG is an answer here, and not the end of the process: the
// limit of file sizes holds for a memfd as well, and sends SIGXFSZ.
inline int SetFileSize(int fd, off_t size) {
  sigset_t only, before;
  sigemptyset(&only);
  sigaddset(&only, SIGXFSZ);
  pthread_sigmask(SIG_BLOCK, &only, &before);
  int result = 0;
  do {
    result = ::ftruncate(fd, size);
  } while (result != 0 && errno == EINTR);
  const int error = errno;
  if (result != 0 && error == EFBIG) {
    const timespec at_once{};
    while (sigtimedwait(&only, nullptr, &at_once) < 0 && errno == EINTR) {
    }
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  errno = error;
  return result;
}

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_OS_FILE_SIZE_POSIX_H_
