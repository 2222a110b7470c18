#include "platform/hostdriver/bounds_posix.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "platform/hostdriver/memory_os.h"

namespace vmm::hostdriver {
namespace {

// The bytes of the file that are locked. Locks of open file descriptions, since
// those of a process would go with any descriptor of the file it closes.
constexpr off_t kMutex = 0;  // Held while bounds are looked at.
constexpr off_t kUsers = 1;  // Held, shared, by each process while it lives.

constexpr char kFolder[] = "/dev/shm";

// The file of this process's instance; -1 before cuInit, or without /dev/shm.
int bounds_fd = -1;
std::string& BoundsPath() {
  static std::string& path = *new std::string;
  return path;
}

bool LockByte(int fd, off_t byte, short type, bool wait) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = byte;
  lock.l_len = 1;
  return fcntl(fd, wait ? F_OFD_SETLKW : F_OFD_SETLK, &lock) == 0;
}

std::string Prefix() { return "vmmhost1." + std::to_string(UserId()) + "."; }

// The file at `path`, locked as a user of it, or -1.
int OpenAsUser(const std::string& path) {
  for (;;) {
    const int fd =
        open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return -1;
    struct stat info {};
    if (!LockByte(fd, kUsers, F_RDLCK, /*wait=*/true) ||
        fstat(fd, &info) != 0 || info.st_uid != geteuid() ||
        !S_ISREG(info.st_mode)) {
      close(fd);
      return -1;
    }
    // Its last user may have removed it before the lock was had.
    if (info.st_nlink != 0) return fd;
    close(fd);
  }
}

// Removes the file at `path` in `folder` if no process uses it.
void RemoveIfUnused(int folder, const char* path, int fd) {
  if (LockByte(fd, kUsers, F_WRLCK, /*wait=*/false)) unlinkat(folder, path, 0);
}

}  // namespace

void JoinInstance(const std::string& instance) {
  const std::string prefix = Prefix();
  BoundsPath() = std::string(kFolder) + "/" + prefix + instance;
  bounds_fd = OpenAsUser(BoundsPath());
  // Those of processes that were killed.
  DIR* dir = opendir(kFolder);
  if (dir == nullptr) return;
  while (const dirent* entry = readdir(dir)) {
    if (std::string(entry->d_name).compare(0, prefix.size(), prefix) != 0) {
      continue;
    }
    const int fd =
        openat(dirfd(dir), entry->d_name, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) continue;
    RemoveIfUnused(dirfd(dir), entry->d_name, fd);
    close(fd);
  }
  closedir(dir);
}

void LeaveInstance() {
  if (bounds_fd < 0) return;
  RemoveIfUnused(AT_FDCWD, BoundsPath().c_str(), bounds_fd);
  close(bounds_fd);
  bounds_fd = -1;
}

BoundsLock::BoundsLock()
    : locked_(bounds_fd >= 0 &&
              LockByte(bounds_fd, kMutex, F_WRLCK, /*wait=*/true)) {}

BoundsLock::~BoundsLock() {
  if (locked_) LockByte(bounds_fd, kMutex, F_UNLCK, /*wait=*/false);
}

// Bounds are stored plus one: what a new file holds, 0, is no bound.
bool BoundsLock::Read(int slot, std::uint64_t* bound) const {
  std::uint64_t stored = 0;
  if (!locked_ ||
      pread(bounds_fd, &stored, sizeof(stored),
            slot * static_cast<off_t>(sizeof(stored))) != sizeof(stored)) {
    return false;
  }
  *bound = stored - 1;
  return stored != 0;
}

void BoundsLock::Write(int slot, std::uint64_t bound) const {
  const std::uint64_t stored = bound + 1;
  if (locked_ && pwrite(bounds_fd, &stored, sizeof(stored),
                        slot * static_cast<off_t>(sizeof(stored))) < 0) {
    return;  // A full disk; the bound of before stays one.
  }
}

}  // namespace vmm::hostdriver
