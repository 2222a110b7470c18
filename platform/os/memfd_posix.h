// Memory that is a file without a name; internal to platform/.
#ifndef VMMSHARE_PLATFORM_OS_MEMFD_POSIX_H_
#define VMMSHARE_PLATFORM_OS_MEMFD_POSIX_H_

#include <sys/mman.h>

#include <cerrno>

#include "platform/os/descriptor_posix.h"
#include "platform/os/os_handle.h"

namespace vmm::platform {

// memfd_create() of memory that can be sealed and never executed: machines with
// vm.memfd_noexec=2 make no other. Owns nothing, with errno set, after an error.
inline OsHandle MakeMemfd(const char* name) {
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  constexpr unsigned kNoExecSeal = 0x8;  // Of <linux/memfd.h>, Linux 6.3.
  OsHandle memory = AdoptDescriptor(::memfd_create(name, kFlags | kNoExecSeal));
  // EINVAL is how a kernel says that it does not know a flag.
  if (!memory.has_value() && errno == EINVAL) {
    memory = AdoptDescriptor(::memfd_create(name, kFlags));
  }
  return memory;
}

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_OS_MEMFD_POSIX_H_
