// GPU memory as this system's handles: how the driver exports it, and the check
// that a received handle can be such memory, before a driver sees it.
//
// Anything can arrive from a peer: a socket, a directory, a file that shrinks
// under its mapping. The NVIDIA driver answers CUDA_ERROR_UNKNOWN to most of
// it (measured), which tells nobody anything.
#ifndef VMMSHARE_PLATFORM_CUDA_MEMORY_HANDLE_H_
#define VMMSHARE_PLATFORM_CUDA_MEMORY_HANDLE_H_

#include <cuda.h>

#include <cstdint>

#include "absl/status/status.h"
#include "platform/cuda/driver.h"
#include "platform/os/os_handle.h"

namespace vmm::platform {

enum class MemoryBacking {
  kNvidiaDriver,  // An open /dev/nvidiactl.
  kHostMemory,    // Of the host-memory driver: a sealed memfd.
};

// OK when `handle` is of the class that `backing` exports and, where the class
// tells, holds exactly `size` bytes. INVALID_ARGUMENT otherwise: says what it
// is and what was expected. Whether a /dev/nvidiactl is memory, and how much,
// only the driver can tell, and tells at the import. Never waits: no file
// system is asked.
absl::Status CheckMemoryHandle(const OsHandle& handle, MemoryBacking backing,
                               std::uint64_t size);

// What CheckMemoryHandle() finds behind the handle of a stream-ordered pool, which
// the host-memory driver makes of a memfd, too; the NVIDIA driver tells no size.
inline constexpr std::uint64_t kHostMemoryPoolBytes = std::uint64_t{2} << 20;

// What this system's handles are to the driver, and what to say of them.
struct MemoryHandleKind {
  CUmemAllocationHandleType type;
  const char* name;            // "POSIX file descriptor", "NT handle".
  const char* export_advice;   // When an export fails.
  const char* support_advice;  // When the driver refuses the kind altogether.
  // Exports `memory`. `handle` is set only on success, and no child process
  // inherits it.
  CUresult (*make)(const Driver& driver, CUmemGenericAllocationHandle memory,
                   OsHandle* handle);
  // The same for a stream-ordered pool.
  CUresult (*make_pool)(const Driver& driver, CUmemoryPool pool,
                        OsHandle* handle);
};
extern const MemoryHandleKind kMemoryHandleKind;

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_CUDA_MEMORY_HANDLE_H_
