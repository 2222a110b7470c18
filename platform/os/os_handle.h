// OsHandle: a file descriptor on POSIX systems, a HANDLE on Windows.
//
// What the operating system calls an open object and what a process can hand
// to another one: exported GPU memory, a socket, an event. The raw value is an
// intptr_t on both systems (a HANDLE is as wide as a pointer), and it is what
// the CUDA driver takes and returns for its operating-system handle kinds.
#ifndef VMMSHARE_PLATFORM_OS_OS_HANDLE_H_
#define VMMSHARE_PLATFORM_OS_OS_HANDLE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "platform/base/owned.h"

namespace vmm::platform {

// Which kind of object this system's handles are: a constant, so that portable
// code can say which CUDA handle kind is the native one.
extern const bool kNativeHandleIsPosixFd;

struct OsHandleTraits {
  using Value = std::intptr_t;
  static Value Nothing() { return -1; }
  // POSIX: any number from 0 on. Windows: neither NULL nor a pseudo handle.
  static bool Holds(Value value);
  static void Close(Value value);
};

// Owns one open descriptor or handle. Thread-compatible.
using OsHandle = Owned<OsHandleTraits>;

// A second handle to what `handle` refers to, not inherited by child processes.
// RESOURCE_EXHAUSTED at the descriptor limit; INVALID_ARGUMENT when `handle`
// is not open.
absl::StatusOr<OsHandle> Duplicate(const OsHandle& handle);

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_OS_OS_HANDLE_H_
