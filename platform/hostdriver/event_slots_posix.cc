#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <utility>

#include "platform/hostdriver/event_slots.h"
#include "platform/hostdriver/file_size_posix.h"
#include "platform/hostdriver/folders_posix.h"
#include "platform/hostdriver/memory_os.h"
#include "platform/hostdriver/own_descriptors_posix.h"

namespace vmm::hostdriver {
namespace {

constexpr std::size_t kBytes = EventFile::kSlots * sizeof(EventSlot);

std::string Prefix() {
  return "vmmhost1-events." + std::to_string(UserId()) + ".";
}

std::string PathOf(const std::string& instance, std::uint64_t id) {
  char digits[20];
  std::snprintf(digits, sizeof(digits), "%016" PRIx64, id);
  return std::string(kSharedFolder) + "/" + Prefix() + instance + "." + digits;
}

EventSlot* MapSlots(int fd) {
  void* data = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) return nullptr;
  // Otherwise a forked child has it, which keeps the file's lock as a descriptor
  // does.
  madvise(data, kBytes, MADV_DONTFORK);
  return static_cast<EventSlot*>(data);
}

}  // namespace

std::shared_ptr<EventFile> EventFile::Make(const std::string& instance) {
  std::uint64_t id = 0;
  if (getrandom(&id, sizeof(id), 0) != sizeof(id)) return nullptr;
  std::string path = PathOf(instance, id);
  // Without a name until it is locked: nobody can take it for a dead one's.
  const int fd = AboveStandardStreams(
      open(kSharedFolder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (fd < 0) return nullptr;
  const std::string self = "/proc/self/fd/" + std::to_string(fd);
  EventSlot* slots = nullptr;
  if (SetFileSize(fd, kBytes) != 0 || flock(fd, LOCK_EX | LOCK_NB) != 0 ||
      (slots = MapSlots(fd)) == nullptr ||
      linkat(AT_FDCWD, self.c_str(), AT_FDCWD, path.c_str(),
             AT_SYMLINK_FOLLOW) != 0) {
    if (slots != nullptr) munmap(slots, kBytes);
    close(fd);
    return nullptr;
  }
  NoteOwn(fd);
  return std::shared_ptr<EventFile>(
      new EventFile(fd, id, slots, std::move(path)));
}

std::shared_ptr<EventFile> EventFile::Open(const std::string& instance,
                                           std::uint64_t id) {
  const int fd = AboveStandardStreams(
      open(PathOf(instance, id).c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (fd < 0) return nullptr;
  struct stat info {};
  EventSlot* slots = nullptr;
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) ||
      info.st_uid != geteuid() || info.st_size != kBytes ||
      (slots = MapSlots(fd)) == nullptr) {
    close(fd);
    return nullptr;
  }
  NoteOwn(fd);
  return std::shared_ptr<EventFile>(new EventFile(fd, id, slots, ""));
}

void EventFile::Unlink() {
  if (!path_.empty()) unlink(path_.c_str());
  path_.clear();
}

EventFile::~EventFile() {
  Unlink();
  munmap(slots_, kBytes);
  CloseOwn(static_cast<int>(file_));
}

bool EventFile::MakerLives() const {
  if (flock(static_cast<int>(file_), LOCK_SH | LOCK_NB) != 0) return true;
  flock(static_cast<int>(file_), LOCK_UN);
  return false;
}

void RemoveDeadEventFiles() {
  RemoveLeftBehind(Prefix(),
                   [](int fd) { return flock(fd, LOCK_EX | LOCK_NB) == 0; });
}

}  // namespace vmm::hostdriver
