#include "platform/hostdriver/bounds_posix.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <string>
#include <thread>

#include "platform/hostdriver/folders_posix.h"
#include "platform/hostdriver/memory_os.h"
#include "platform/hostdriver/own_descriptors_posix.h"

namespace vmm::hostdriver {
namespace {

// The bytes of the file that are locked. Locks of open file descriptions, since
// those of a process would go with any descriptor of the file it closes.
constexpr off_t kMutex = 0;  // Held while bounds are looked at.
constexpr off_t kUsers = 1;  // Held, shared, by each process while it lives.

constexpr std::chrono::microseconds kLongestPause{1000};

// The file of this process's instance; -1 before cuInit, or without /dev/shm.
int bounds_fd = -1;
std::string& BoundsPath() {
  static std::string& path = *new std::string;
  return path;
}

bool LockByte(int fd, off_t byte, short type) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = byte;
  lock.l_len = 1;
  return fcntl(fd, F_OFD_SETLK, &lock) == 0;
}

// Asks again and again: the system's own wait for such a lock has no deadline.
Locked AwaitByte(int fd, off_t byte, short type) {
  const auto end = std::chrono::steady_clock::now() + kLockPatience;
  for (std::chrono::microseconds pause{20}; !LockByte(fd, byte, type);
       pause = std::min(2 * pause, kLongestPause)) {
    if (errno != EAGAIN && errno != EACCES && errno != EINTR) {
      return Locked::kNo;
    }
    if (std::chrono::steady_clock::now() >= end) return Locked::kTimedOut;
    std::this_thread::sleep_for(pause);
  }
  return Locked::kYes;
}

std::string Prefix() { return "vmmhost1." + std::to_string(UserId()) + "."; }

// Puts the file at `path`, locked as a user of it, into `opened`; -1 if it
// cannot be had. False when somebody else keeps the lock.
bool OpenAsUser(const std::string& path, int* opened) {
  *opened = -1;
  for (;;) {
    const int fd = AboveStandardStreams(
        open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (fd < 0) return true;
    struct stat info {};
    const Locked locked = AwaitByte(fd, kUsers, F_RDLCK);
    if (locked != Locked::kYes || fstat(fd, &info) != 0 ||
        info.st_uid != geteuid() || !S_ISREG(info.st_mode)) {
      close(fd);
      return locked != Locked::kTimedOut;
    }
    // Its last user may have removed it before the lock was had.
    if (info.st_nlink != 0) {
      *opened = fd;
      return true;
    }
    close(fd);
  }
}

// Whether no other process uses the file; from then on none does.
bool LockAlone(int fd) { return LockByte(fd, kUsers, F_WRLCK); }

}  // namespace

bool JoinInstance(const std::string& instance) {
  const std::string prefix = Prefix();
  BoundsPath() = std::string(kSharedFolder) + "/" + prefix + instance;
  if (!OpenAsUser(BoundsPath(), &bounds_fd)) return false;
  if (bounds_fd >= 0) NoteOwn(bounds_fd);
  RemoveLeftBehind(prefix, &LockAlone);
  return true;
}

void LeaveInstance() {
  if (bounds_fd < 0) return;
  if (LockAlone(bounds_fd)) unlink(BoundsPath().c_str());
  CloseOwn(bounds_fd);
  bounds_fd = -1;
}

BoundsLock::BoundsLock()
    : locked_(bounds_fd >= 0 ? AwaitByte(bounds_fd, kMutex, F_WRLCK)
                             : Locked::kNo) {}

BoundsLock::~BoundsLock() {
  if (locked_ == Locked::kYes) LockByte(bounds_fd, kMutex, F_UNLCK);
}

// Bounds are stored plus one: what a new file holds, 0, is no bound.
bool BoundsLock::Read(int slot, std::uint64_t* bound) const {
  std::uint64_t stored = 0;
  if (locked_ != Locked::kYes ||
      pread(bounds_fd, &stored, sizeof(stored),
            slot * static_cast<off_t>(sizeof(stored))) != sizeof(stored)) {
    return false;
  }
  *bound = stored - 1;
  return stored != 0;
}

void BoundsLock::Write(int slot, std::uint64_t bound) const {
  const std::uint64_t stored = bound + 1;
  if (locked_ == Locked::kYes &&
      pwrite(bounds_fd, &stored, sizeof(stored),
             slot * static_cast<off_t>(sizeof(stored))) < 0) {
    return;  // A full disk; the bound of before stays one.
  }
}

}  // namespace vmm::hostdriver
