// Memory that is a file without a name; internal to platform/.
#ifndef VMMSHARE_PLATFORM_OS_MEMFD_POSIX_H_
#define VMMSHARE_PLATFORM_OS_MEMFD_POSIX_H_

#include <sys/mman.h>
#include <sys/vfs.h>

#include <cerrno>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "platform/os/descriptor_posix.h"
#include "platform/os/os_error.h"
#include "platform/os/os_handle.h"

namespace vmm::platform {

// memfd_create() of memory that can be sealed and never executed: machines with
// vm.memfd_noexec=2 make no other. Errors as OsError().
inline absl::StatusOr<OsHandle> MakeMemfd(const char* name) {
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  constexpr unsigned kNoExecSeal = 0x8;  // Of <linux/memfd.h>, Linux 6.3.
  OsHandle memory = AdoptDescriptor(::memfd_create(name, kFlags | kNoExecSeal));
  // EINVAL is how a kernel says that it does not know a flag.
  if (!memory.has_value() && errno == EINVAL) {
    memory = AdoptDescriptor(::memfd_create(name, kFlags));
  }
  if (memory.has_value()) return memory;
  const LastError error;
  const int code = error.code();
  const bool is_refused = code == EPERM || code == EACCES || code == ENOSYS;
  return error.Of(absl::StrCat("memfd_create(", name, ")"),
                  is_refused ? "A container's seccomp profile may refuse that "
                               "call: allow memfd_create in it."
                             : "");
}

// Whether `memory`, a file that has seals, is of the kernel's own tmpfs, as
// ordinary memfds are. One of huge pages is not, though it can be sealed too:
// whoever touches a page of it that cannot be had is ended.
inline absl::StatusOr<bool> HasOrdinaryPages(const OsHandle& memory) {
  constexpr long kTmpfsMagic = 0x01021994;  // Of <linux/magic.h>.
  struct statfs system {};
  while (::fstatfs(Fd(memory), &system) != 0) {
    if (errno == EINTR) continue;
    return LastError().Of(
        absl::StrCat("fstatfs(descriptor ", memory.get(), ")"));
  }
  return system.f_type == kTmpfsMagic;
}

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_OS_MEMFD_POSIX_H_
