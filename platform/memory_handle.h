// Checks that a received handle can be GPU memory, before a driver sees it.
//
// Anything can arrive from a peer: a socket, a directory, a file that shrinks
// under its mapping. The NVIDIA driver answers CUDA_ERROR_UNKNOWN to most of
// it (measured), which tells nobody anything.
#ifndef VMMSHARE_PLATFORM_MEMORY_HANDLE_H_
#define VMMSHARE_PLATFORM_MEMORY_HANDLE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "platform/os_handle.h"

namespace vmm::platform {

enum class MemoryBacking {
  kNvidiaDriver,  // A character device of the nvidia class.
  kHostMemory,    // Of the host-memory driver: a sealed memfd.
};

// OK when `handle` is of the class that `backing` exports and, where the class
// tells, holds exactly `size` bytes. INVALID_ARGUMENT otherwise: says what it
// is and what was expected.
absl::Status CheckMemoryHandle(const OsHandle& handle, MemoryBacking backing,
                               std::uint64_t size);

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_MEMORY_HANDLE_H_
