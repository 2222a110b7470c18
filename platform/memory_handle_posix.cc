#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <string>
#include <vector>

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

// The whole of a small file of the kernel's.
absl::StatusOr<std::string> ReadFile(const char* path) {
  const OsHandle file = OsHandle::Adopt(::open(path, O_RDONLY | O_CLOEXEC));
  if (!file.has_value())
    return OsError(errno, absl::StrCat("open(", path, ")"));
  std::string text;
  char part[4096];
  for (;;) {
    const ssize_t size =
        ::read(static_cast<int>(file.get()), part, sizeof(part));
    if (size == 0) return text;
    if (size > 0) {
      text.append(part, static_cast<std::size_t>(size));
    } else if (errno != EINTR) {
      return OsError(errno, absl::StrCat("read(", path, ")"));
    }
  }
}

// Whether `number` is of a character device that the kernel lists as NVIDIA's.
// Memory exported by the driver is an open /dev/nvidiactl, major 195
// (measured); the list is asked because that number is only customary.
absl::StatusOr<bool> IsNvidiaMajor(unsigned number) {
  absl::StatusOr<std::string> devices = ReadFile("/proc/devices");
  if (!devices.ok()) return devices.status();
  for (absl::string_view line : absl::StrSplit(*devices, '\n')) {
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, ' ', absl::SkipEmpty());
    unsigned listed = 0;
    if (words.size() == 2 && absl::SimpleAtoi(words[0], &listed) &&
        listed == number &&
        (words[1] == "nvidia" || words[1] == "nvidiactl" ||
         words[1] == "nvidia-frontend")) {
      return true;
    }
  }
  return false;
}

// The last major number found to be NVIDIA's. A driver keeps its number while
// it is loaded, and every import asks.
std::atomic<unsigned>& KnownNvidiaMajor() {
  static std::atomic<unsigned> known{0};
  return known;
}

absl::StatusOr<bool> IsNvidiaDevice(const struct stat& info) {
  if (!S_ISCHR(info.st_mode)) return false;
  const unsigned number = major(info.st_rdev);
  if (number != 0 && number == KnownNvidiaMajor()) return true;
  absl::StatusOr<bool> is_nvidia = IsNvidiaMajor(number);
  if (is_nvidia.ok() && *is_nvidia) KnownNvidiaMajor() = number;
  return is_nvidia;
}

absl::Status CheckNvidiaDevice(const struct stat& info) {
  absl::StatusOr<bool> is_nvidia = IsNvidiaDevice(info);
  if (!is_nvidia.ok()) return is_nvidia.status();
  if (*is_nvidia) return absl::OkStatus();
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
  // EINVAL is how the kernel says that a file has no seals.
  if (seals < 0 && errno != EINVAL) {
    return OsError(errno,
                   absl::StrCat("fcntl(descriptor ", fd, ", F_GET_SEALS)"));
  }
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

namespace {

CUresult Make(const Driver& driver, CUmemGenericAllocationHandle memory,
              OsHandle* handle) {
  int descriptor = -1;
  const CUresult result = driver->cuMemExportToShareableHandle(
      &descriptor, memory, kMemoryHandleKind.type, 0);
  // The driver sets close-on-exec itself (measured), so no child inherits it.
  if (result == CUDA_SUCCESS) *handle = OsHandle::Adopt(descriptor);
  return result;
}

}  // namespace

const MemoryHandleKind kMemoryHandleKind = {
    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, "POSIX file descriptor",
    "Only memory created with this handle kind can be exported, and imported "
    "memory never; check `ulimit -n` and /proc/self/fd as well.",
    "Virtual GPUs have no virtual memory management; WSL2 refuses chunks of 4 "
    "GiB and more (set max_chunk_size).",
    &Make};

}  // namespace vmm::platform
