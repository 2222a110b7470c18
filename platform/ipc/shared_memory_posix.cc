#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "platform/base/annotate.h"
#include "platform/base/check.h"
#include "platform/base/status_macros.h"
#include "platform/ipc/shared_memory.h"
#include "platform/os/descriptor_posix.h"
#include "platform/os/file_size_posix.h"
#include "platform/os/map_error_posix.h"
#include "platform/os/memfd_posix.h"
#include "platform/os/os_error.h"

namespace vmm::platform {
namespace {

absl::StatusOr<MappedView> Map(int fd, std::size_t size, PeerAccess access) {
  const int protection =
      access == PeerAccess::kReadWrite ? PROT_READ | PROT_WRITE : PROT_READ;
  void* const data = ::mmap(nullptr, size, protection, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) {
    const LastError error;
    return MapError(error, absl::StrCat("mmap(descriptor ", fd, ", ", size,
                                        " bytes of shared memory)"));
  }
  return MappedView::Adopt({static_cast<std::uint8_t*>(data), size});
}

// After it is mapped here: a mapping that is there stays writable.
absl::Status Seal(int fd, PeerAccess peers) {
  const int fixed_size = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  if (peers == PeerAccess::kReadWrite) {
    if (::fcntl(fd, F_ADD_SEALS, fixed_size) == 0) return absl::OkStatus();
    return LastError().Of("fcntl(F_ADD_SEALS, SHRINK|GROW|SEAL)");
  }
  if (::fcntl(fd, F_ADD_SEALS, fixed_size | F_SEAL_FUTURE_WRITE) == 0) {
    return absl::OkStatus();
  }
  const char* const call = "fcntl(F_ADD_SEALS, SHRINK|GROW|SEAL|FUTURE_WRITE)";
  if (errno != EINVAL) return LastError().Of(call);
  return absl::UnimplementedError(
      absl::StrCat(call,
                   " failed with EINVAL: this kernel cannot make memory that "
                   "peers may only read; sharing out of a pool needs Linux "
                   "5.1 or newer"));
}

// What a descriptor that is no memfd is.
const char* KindOf(mode_t mode) {
  return S_ISREG(mode) ? "a file that is no memfd" : TypeName(mode);
}

absl::Status Unfit(absl::string_view is, absl::string_view expected) {
  return absl::InvalidArgumentError(absl::StrCat(
      "the descriptor for shared control memory is ", is, "; expected ",
      expected, ". Its sender is no vmmshare, or means harm: hang up"));
}

absl::Status CheckSeals(int seals, PeerAccess access) {
  if ((seals & F_SEAL_SHRINK) == 0 || (seals & F_SEAL_GROW) == 0) {
    return Unfit(
        absl::StrFormat("memory whose size its sender can still change (its "
                        "seals are 0x%x)",
                        seals),
        "a memfd sealed with F_SEAL_SHRINK and F_SEAL_GROW");
  }
  if (access == PeerAccess::kReadWrite &&
      (seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) != 0) {
    return Unfit(
        absl::StrFormat("sealed against writing (its seals are 0x%x)", seals),
        "memory that this process may write");
  }
  return absl::OkStatus();
}

absl::Status CheckMemfd(const OsHandle& handle, std::size_t size,
                        PeerAccess access) {
  const int fd = Fd(handle);
  const absl::StatusOr<FileLook> look = LookAt(handle);
  if (!look.ok()) {
    return Annotate(look.status(), "",
                    "Expected an open descriptor of shared memory.");
  }
  if (!S_ISREG(look->mode)) return Unfit(KindOf(look->mode), "a sealed memfd");
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0) {
    // EINVAL is how the kernel says that a file has no seals.
    return errno == EINVAL ? Unfit(KindOf(look->mode), "a sealed memfd")
                           : LastError().Of(absl::StrCat("fcntl(descriptor ",
                                                         fd, ", F_GET_SEALS)"));
  }
  RETURN_IF_ERROR(CheckSeals(seals, access));
  // Only now is its size its last one.
  ASSIGN_OR_RETURN(const FileLook sealed, LookAt(handle));
  ASSIGN_OR_RETURN(const bool is_ordinary, HasOrdinaryPages(handle));
  if (!is_ordinary) {
    return Unfit("memory of huge pages", "a memfd of ordinary pages");
  }
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0) {
    return LastError().Of(absl::StrCat("fcntl(descriptor ", fd, ", F_GETFL)"));
  }
  if (access == PeerAccess::kReadWrite && (flags & O_ACCMODE) != O_RDWR) {
    return Unfit("open for reading only", "memory that this process may write");
  }
  if (sealed.size != size) {
    return Unfit(absl::StrCat("a memfd of ", sealed.size, " bytes"),
                 absl::StrCat(size, " bytes"));
  }
  return absl::OkStatus();
}

}  // namespace

void MappedViewTraits::Close(Value value) {
  // Fails only for a range that is not one, which cannot be told from
  // corruption; but splitting a mapping may be refused for want of memory.
  Check(::munmap(value.data(), value.size()) == 0 || errno == ENOMEM,
        "munmap() refused a range that was mapped");
}

absl::StatusOr<SharedMemory> SharedMemory::Create(std::size_t size,
                                                  PeerAccess peers) {
  Check(size > 0, "SharedMemory::Create() of 0 bytes");
  ASSIGN_OR_RETURN(OsHandle memory, MakeMemfd("vmmshare-control"));
  const int fd = Fd(memory);
  if (SetFileSize(fd, static_cast<off_t>(size)) != 0) {
    return LastError().Of(absl::StrCat("ftruncate(memfd, ", size, ")"));
  }
  ASSIGN_OR_RETURN(MappedView view, Map(fd, size, PeerAccess::kReadWrite));
  RETURN_IF_ERROR(Seal(fd, peers));
  return SharedMemory(std::move(memory), std::move(view), /*writable=*/true);
}

absl::StatusOr<SharedMemory> SharedMemory::Open(const OsHandle& handle,
                                                std::size_t size,
                                                PeerAccess access) {
  Check(size > 0, "SharedMemory::Open() of 0 bytes");
  const int fd = Fd(handle);
  RETURN_IF_ERROR(CheckMemfd(handle, size, access));
  ASSIGN_OR_RETURN(MappedView view, Map(fd, size, access));
  return SharedMemory(OsHandle(), std::move(view),
                      access == PeerAccess::kReadWrite);
}

}  // namespace vmm::platform
