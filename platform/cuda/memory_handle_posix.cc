#include <fcntl.h>
#include <sys/stat.h>

#include <atomic>
#include <cerrno>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/annotate.h"
#include "platform/base/status_macros.h"
#include "platform/cuda/memory_handle.h"
#include "platform/cuda/nvidia_node_posix.h"
#include "platform/os/descriptor_posix.h"
#include "platform/os/memfd_posix.h"
#include "platform/os/os_error.h"
#include "platform/os/text_file_posix.h"

namespace vmm::platform {
namespace {

// The last major number found to be NVIDIA's. A driver keeps its number while
// it is loaded, and every import asks.
constinit std::atomic<unsigned> known_nvidia_major{0};

absl::StatusOr<bool> IsNvidiaDevice(const FileLook& look) {
  if (!S_ISCHR(look.mode)) return false;
  const unsigned number = look.device_major;
  if (number != 0 && number == known_nvidia_major) return true;
  ASSIGN_OR_RETURN(const std::string devices, ReadTextFile("/proc/devices"));
  const bool is_nvidia = IsNvidiaMajor(number, devices);
  if (is_nvidia) known_nvidia_major = number;
  return is_nvidia;
}

absl::Status CheckNvidiaDevice(const FileLook& look) {
  ASSIGN_OR_RETURN(const bool is_nvidia, IsNvidiaDevice(look));
  if (is_nvidia && look.device_minor == kNvidiaControlMinor) {
    return absl::OkStatus();
  }
  const std::string number =
      S_ISCHR(look.mode)
          ? absl::StrCat(" ", look.device_major, ":", look.device_minor)
          : "";
  return absl::InvalidArgumentError(
      absl::StrCat("the descriptor is ", TypeName(look.mode), number,
                   is_nvidia ? ", which is NVIDIA's" : "",
                   "; expected GPU memory exported by the NVIDIA driver, an "
                   "open /dev/nvidiactl"));
}

absl::Status CheckSealedMemory(const OsHandle& handle, const FileLook& look,
                               std::uint64_t size) {
  constexpr int kNeeded = F_SEAL_SHRINK | F_SEAL_GROW;
  const int fd = Fd(handle);
  const int seals = fcntl(fd, F_GET_SEALS);
  // EINVAL is how the kernel says that a file has no seals.
  if (seals < 0 && errno != EINVAL) {
    return LastError().Of(
        absl::StrCat("fcntl(descriptor ", fd, ", F_GET_SEALS)"));
  }
  if (!S_ISREG(look.mode) || seals < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the descriptor is ", TypeName(look.mode),
                     " that is no memfd; expected memory exported by the "
                     "host-memory driver"));
  }
  if ((seals & kNeeded) != kNeeded) {
    return absl::InvalidArgumentError(
        "the descriptor is a memfd that its sender can still shrink or grow; "
        "expected one sealed against both");
  }
  ASSIGN_OR_RETURN(const bool is_ordinary, HasOrdinaryPages(handle));
  if (!is_ordinary) {
    return absl::InvalidArgumentError(
        "the descriptor is memory of huge pages; expected a memfd of ordinary "
        "pages, as the host-memory driver makes them");
  }
  // Only now is its size its last one.
  ASSIGN_OR_RETURN(const FileLook sealed, LookAt(handle));
  if (sealed.size != size) {
    return absl::InvalidArgumentError(
        absl::StrCat("the descriptor is a memfd of ", sealed.size,
                     " bytes; expected ", size, " bytes"));
  }
  return absl::OkStatus();
}

CUresult Make(const Driver& driver, CUmemGenericAllocationHandle memory,
              OsHandle* handle) {
  int descriptor = -1;
  const CUresult result = driver->cuMemExportToShareableHandle(
      &descriptor, memory, kMemoryHandleKind.type, 0);
  // The driver sets close-on-exec itself (measured), so no child inherits it.
  if (result != CUDA_SUCCESS) return result;
  *handle = AdoptDescriptor(descriptor);
  return handle->has_value() ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

CUresult MakePool(const Driver& driver, CUmemoryPool pool, OsHandle* handle) {
  int descriptor = -1;
  const CUresult result = driver->cuMemPoolExportToShareableHandle(
      &descriptor, pool, kMemoryHandleKind.type, 0);
  if (result != CUDA_SUCCESS) return result;
  // Here the driver does not set close-on-exec (measured), and a duplicate has
  // it.
  const OsHandle inheritable = OsHandle::Adopt(descriptor);
  absl::StatusOr<OsHandle> own = Duplicate(inheritable);
  if (!own.ok()) return CUDA_ERROR_OPERATING_SYSTEM;
  *handle = *std::move(own);
  return CUDA_SUCCESS;
}

}  // namespace

absl::Status CheckMemoryHandle(const OsHandle& handle, MemoryBacking backing,
                               std::uint64_t size) {
  const absl::StatusOr<FileLook> look = LookAt(handle);
  if (!look.ok()) {
    return Annotate(look.status(), "",
                    "Expected an open descriptor of exported GPU memory.");
  }
  return backing == MemoryBacking::kHostMemory
             ? CheckSealedMemory(handle, *look, size)
             : CheckNvidiaDevice(*look);
}

const MemoryHandleKind kMemoryHandleKind = {
    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
    "POSIX file descriptor",
    "Only memory created with this handle kind can be exported, and imported "
    "memory never.",
    "Virtual GPUs have no virtual memory management; WSL2 refuses chunks of 4 "
    "GiB and more (set max_chunk_size).",
    &Make,
    &MakePool};

}  // namespace vmm::platform
