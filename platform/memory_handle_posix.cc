#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <cerrno>
#include <fstream>
#include <set>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "platform/memory_handle.h"
#include "platform/os_error.h"

namespace vmm::platform {
namespace {

// What a file mode says the descriptor is, for messages.
absl::string_view TypeOf(mode_t mode) {
  if (S_ISREG(mode)) return "a file";
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISSOCK(mode)) return "a socket";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISBLK(mode)) return "a block device";
  if (S_ISCHR(mode)) return "a character device";
  return "an object of unknown type";
}

// The numbers of the character devices that the kernel lists under "nvidia"
// and "nvidiactl". Memory exported by the driver is an open /dev/nvidiactl,
// major 195 (measured); the list is asked because the number is only
// customary.
bool IsNvidiaMajor(unsigned number) {
  static const std::set<unsigned> majors = [] {
    std::set<unsigned> found;
    std::ifstream devices("/proc/devices");
    for (std::string line; std::getline(devices, line);) {
      const std::vector<absl::string_view> words =
          absl::StrSplit(line, ' ', absl::SkipEmpty());
      unsigned listed = 0;
      if (words.size() == 2 && absl::SimpleAtoi(words[0], &listed) &&
          (words[1] == "nvidia" || words[1] == "nvidiactl" ||
           words[1] == "nvidia-frontend")) {
        found.insert(listed);
      }
    }
    if (found.empty()) found.insert(195);
    return found;
  }();
  return majors.count(number) != 0;
}

absl::Status CheckNvidiaDevice(const struct stat& info) {
  if (S_ISCHR(info.st_mode) && IsNvidiaMajor(major(info.st_rdev))) {
    return absl::OkStatus();
  }
  const std::string number =
      S_ISCHR(info.st_mode)
          ? absl::StrCat(" ", major(info.st_rdev), ":", minor(info.st_rdev))
          : "";
  return absl::InvalidArgumentError(
      absl::StrCat("the descriptor is ", TypeOf(info.st_mode), number,
                   "; expected GPU memory exported by the NVIDIA driver, a "
                   "character device of the nvidia class"));
}

absl::Status CheckSealedMemory(int fd, const struct stat& info,
                               std::uint64_t size) {
  constexpr int kNeeded = F_SEAL_SHRINK | F_SEAL_GROW;
  const int seals = fcntl(fd, F_GET_SEALS);
  if (!S_ISREG(info.st_mode) || seals < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the descriptor is ", TypeOf(info.st_mode),
                     " that is no memfd; expected memory exported by the "
                     "host-memory driver"));
  }
  if ((seals & kNeeded) != kNeeded) {
    return absl::InvalidArgumentError(
        "the descriptor is a memfd that its sender can still shrink or grow; "
        "expected one sealed against both");
  }
  if (static_cast<std::uint64_t>(info.st_size) != size) {
    return absl::InvalidArgumentError(
        absl::StrCat("the descriptor is a memfd of ", info.st_size,
                     " bytes; expected ", size, " bytes"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckMemoryHandle(const OsHandle& handle, MemoryBacking backing,
                               std::uint64_t size) {
  const int fd = static_cast<int>(handle.get());
  struct stat info {};
  if (fstat(fd, &info) != 0) {
    return OsError(errno, absl::StrCat("fstat(descriptor ", fd, ")"),
                   "Expected an open descriptor of exported GPU memory.");
  }
  return backing == MemoryBacking::kHostMemory
             ? CheckSealedMemory(fd, info, size)
             : CheckNvidiaDevice(info);
}

}  // namespace vmm::platform
