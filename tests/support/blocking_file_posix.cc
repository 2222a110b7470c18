#include "tests/support/blocking_file_posix.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "platform/base/check.h"

namespace vmm::testing {
namespace {

constexpr std::chrono::seconds kLongest{30};

std::atomic<std::uint64_t> marked = 0;  // 0: none.

struct Gate {
  std::mutex mutex;
  std::condition_variable opened;
};

// Threads that nobody waits for may use it last.
Gate& TheGate() {
  static Gate& gate = *new Gate;
  return gate;
}

// Past the wraps, and without asking the file's own system.
std::uint64_t FileOf(int fd) {
  struct statx about {};
  if (::syscall(SYS_statx, fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC,
                STATX_INO, &about) != 0) {
    return 0;
  }
  return about.stx_ino * 31 + about.stx_dev_minor;
}

}  // namespace

BlockingFile::BlockingFile(int fd) {
  platform::Check(marked.exchange(FileOf(fd)) == 0, "one blocks already");
}

BlockingFile::~BlockingFile() {
  const std::lock_guard<std::mutex> lock(TheGate().mutex);
  marked = 0;
  TheGate().opened.notify_all();
}

void internal::BlockIfMarked(int fd) {
  if (marked == 0) return;
  const int saved = errno;
  if (FileOf(fd) == marked) {
    std::unique_lock<std::mutex> lock(TheGate().mutex);
    TheGate().opened.wait_for(lock, kLongest, [] { return marked == 0; });
  }
  errno = saved;
}

}  // namespace vmm::testing
