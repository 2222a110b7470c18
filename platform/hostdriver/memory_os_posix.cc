#include <fcntl.h>
#include <limits.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <string_view>

#include "platform/hostdriver/cuda_api.h"
#include "platform/hostdriver/file_size_posix.h"
#include "platform/hostdriver/memory_os.h"
#include "platform/hostdriver/own_descriptors_posix.h"

namespace vmm::hostdriver {

const unsigned long long kNativeHandleType =
    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

namespace {

// Not so of a thread's number, by which /proc would lead to its process's
// descriptors as well.
bool IsProcess(pid_t number) {
  const long pidfd = syscall(SYS_pidfd_open, number, 0U);
  if (pidfd < 0) return false;
  close(static_cast<int>(pidfd));
  return true;
}

// Of <linux/magic.h>. Memory of huge pages has seals too, but no such file: whoever
// touches a page of it that cannot be had is ended.
constexpr long kTmpfsMagic = 0x01021994;

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

void* Pointer(std::uint64_t address) {
  return reinterpret_cast<void*>(address);
}

std::uint64_t MapNothing(std::uint64_t hint, std::size_t size) {
  void* data = mmap(Pointer(hint), size, PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return data == MAP_FAILED ? 0 : reinterpret_cast<std::uint64_t>(data);
}

// Reserves exactly at `address`, or answers false. A plain hint, not
// MAP_FIXED_NOREPLACE: sanitizers turn addresses they cannot serve into 0.
bool ReserveAt(std::uint64_t address, std::size_t size) {
  const std::uint64_t got = MapNothing(address, size);
  if (got == address) return true;
  if (got != 0) FreeAddresses(got, size);
  return false;
}

// The label of the memory object behind `link`, a descriptor in /proc.
std::optional<MemoryLabel> LabelOf(const std::string& link) {
  char target[PATH_MAX];
  const ssize_t length = readlink(link.c_str(), target, sizeof(target));
  if (length <= 0) return std::nullopt;
  std::string_view text(target, static_cast<std::size_t>(length));
  constexpr std::string_view kPrefix = "/memfd:";
  constexpr std::string_view kSuffix = " (deleted)";
  if (text.size() < kPrefix.size() + kSuffix.size() ||
      text.substr(0, kPrefix.size()) != kPrefix ||
      text.substr(text.size() - kSuffix.size()) != kSuffix) {
    return std::nullopt;
  }
  text.remove_prefix(kPrefix.size());
  text.remove_suffix(kSuffix.size());
  return ParseLabel(text);
}

// What `fd` is, which is closed if CreateMemory() did not make it.
std::optional<OpenedMemory> Inspect(int fd) {
  const std::optional<MemoryLabel> label =
      LabelOf("/proc/self/fd/" + std::to_string(fd));
  struct stat info {};
  struct statfs system {};
  const int seals = fcntl(fd, F_GET_SEALS);
  const int flags = fcntl(fd, F_GETFL);
  if (!label || seals < 0 || (seals & kSeals) != kSeals ||
      (seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) != 0 || flags < 0 ||
      (flags & O_ACCMODE) != O_RDWR || fstatfs(fd, &system) != 0 ||
      system.f_type != kTmpfsMagic || fstat(fd, &info) != 0 ||
      info.st_size <= 0 ||
      static_cast<std::uint64_t>(info.st_size) % kGranularity != 0) {
    close(fd);
    return std::nullopt;
  }
  NoteOwn(fd);
  return OpenedMemory{fd, *label, static_cast<std::size_t>(info.st_size)};
}

}  // namespace

std::optional<OsMemory> CreateMemory(const MemoryLabel& label,
                                     std::size_t size) {
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  // Of <linux/memfd.h>, Linux 6.3: the memory can never be executed, and
  // machines with vm.memfd_noexec=2 make no other.
  constexpr unsigned kNoExecSeal = 0x8;
  const std::string name = LabelText(label);
  int made = memfd_create(name.c_str(), kFlags | kNoExecSeal);
  // EINVAL is how a kernel says that it does not know a flag.
  if (made < 0 && errno == EINVAL) made = memfd_create(name.c_str(), kFlags);
  const int fd = AboveStandardStreams(made);
  if (fd < 0) return std::nullopt;
  if (SetFileSize(fd, static_cast<off_t>(size)) != 0 ||
      fcntl(fd, F_ADD_SEALS, kSeals) != 0) {
    close(fd);
    return std::nullopt;
  }
  NoteOwn(fd);
  return fd;
}

void CloseMemory(OsMemory memory) { CloseOwn(static_cast<int>(memory)); }

std::optional<OsMemory> DuplicateMemory(OsMemory memory) {
  const int fd = fcntl(static_cast<int>(memory), F_DUPFD_CLOEXEC, 0);
  if (fd < 0) return std::nullopt;
  return fd;
}

void InheritOnExec(OsMemory memory) {
  fcntl(static_cast<int>(memory), F_SETFD, 0);
}

void StoreExported(OsMemory memory, void* shareable) {
  *static_cast<int*>(shareable) = static_cast<int>(memory);
}

bool AreHandleAttributes(const void*) { return true; }
bool ApplyHandleAttributes(OsMemory, const void*) { return true; }

std::optional<OpenedMemory> OpenExported(std::intptr_t handle) {
  if (handle < 0 || handle > INT_MAX) return std::nullopt;
  // Every check is on our own duplicate: the caller's number may be closed and
  // reused by another thread meanwhile.
  const int fd = fcntl(static_cast<int>(handle), F_DUPFD_CLOEXEC, kLowestOwn);
  if (fd < 0) return std::nullopt;
  return Inspect(fd);
}

std::uint64_t ProcessNumber() { return static_cast<std::uint64_t>(getpid()); }

std::optional<OpenedMemory> OpenOf(std::uint64_t process, OsMemory memory,
                                   std::uint64_t id) {
  if (process == 0 || process > INT_MAX || memory < 0 || memory > INT_MAX ||
      !IsProcess(static_cast<pid_t>(process))) {
    return std::nullopt;
  }
  const std::string path =
      "/proc/" + std::to_string(process) + "/fd/" + std::to_string(memory);
  // Looked at before it is opened, too: to open a device or a pipe does things.
  const std::optional<MemoryLabel> label = LabelOf(path);
  if (!label || label->id != id) return std::nullopt;
  const int fd =
      AboveStandardStreams(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
  if (fd < 0) return std::nullopt;
  std::optional<OpenedMemory> opened = Inspect(fd);
  if (opened && opened->label.id != id) {
    CloseMemory(opened->memory);
    return std::nullopt;
  }
  return opened;
}

std::uint64_t RandomNumber() {
  std::uint64_t number = 0;
  return getrandom(&number, sizeof(number), 0) == sizeof(number) ? number : 0;
}

void* MapWhole(OsMemory memory, std::size_t size, bool on_device) {
  void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED,
                    static_cast<int>(memory), 0);
  if (data == MAP_FAILED) return nullptr;
  // Otherwise a forked child keeps the memory.
  if (on_device) madvise(data, size, MADV_DONTFORK);
  return data;
}

void UnmapWhole(void* data, std::size_t size) { munmap(data, size); }

std::uint64_t ReserveAddresses(std::size_t size, std::size_t alignment,
                               std::uint64_t hint) {
  if (hint != 0 && hint % alignment == 0 && ReserveAt(hint, size)) return hint;
  // Over-reserving finds a place at once, unless alignment is a large part of
  // the address space; then a few aligned places are tried first.
  if (alignment >= std::size_t{1} << 40) {
    for (std::uint64_t at = alignment; at < std::uint64_t{1} << 47;
         at += alignment) {
      if (ReserveAt(at, size)) return at;
    }
  }
  if (size > SIZE_MAX - alignment) return 0;
  const std::size_t span = size + alignment;
  const std::uint64_t start = MapNothing(0, span);
  if (start == 0) return 0;
  const std::uint64_t address = RoundUp(start, alignment);
  if (address > start) FreeAddresses(start, address - start);
  const std::uint64_t end = start + span;
  if (end > address + size) FreeAddresses(address + size, end - address - size);
  return address;
}

void FreeAddresses(std::uint64_t address, std::size_t size) {
  munmap(Pointer(address), size);
}

bool ExposeMemory(OsMemory memory, std::uint64_t address, std::size_t size,
                  CpuAccess access) {
  int protection = PROT_NONE;
  if (access != CpuAccess::kNone) protection |= PROT_READ;
  if (access == CpuAccess::kReadWrite) protection |= PROT_WRITE;
  return mmap(Pointer(address), size, protection, MAP_SHARED | MAP_FIXED,
              static_cast<int>(memory), 0) != MAP_FAILED;
}

bool HideMemory(std::uint64_t address, std::size_t size) {
  return mmap(Pointer(address), size, PROT_NONE,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
              0) != MAP_FAILED;
}

}  // namespace vmm::hostdriver
