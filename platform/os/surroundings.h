// What around this process decides whether sharing works: limits, container,
// kernel. Looks only; for `vmmshare doctor` and for messages.
//
// `root` is a folder in whose /dev, /proc and /run is looked in place of the
// system's; "" is the system itself. What this operating system does not have
// is UNIMPLEMENTED. Thread-safe.
#ifndef VMMSHARE_PLATFORM_OS_SURROUNDINGS_H_
#define VMMSHARE_PLATFORM_OS_SURROUNDINGS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace vmm::platform {

// How many descriptors this process may have open: now, and the most that it
// may raise that to. Every shared chunk takes one in each process.
struct DescriptorLimits {
  std::uint64_t soft = 0;
  std::uint64_t hard = 0;
};
absl::StatusOr<DescriptorLimits> GetDescriptorLimits();

// Bytes of the file system that holds shared memory objects (/dev/shm).
struct FileSpace {
  std::uint64_t total = 0;
  std::uint64_t free = 0;
};
absl::StatusOr<FileSpace> SharedMemorySpace(const std::string& root = "");

// What shows that this process runs in a container ("/.dockerenv exists"), or
// "" when nothing does. A container can hide it.
absl::StatusOr<std::string> ContainerMark(const std::string& root = "");

// Whether the kernel is that of WSL2.
absl::StatusOr<bool> IsWsl2(const std::string& root = "");

// Yama's rule for who may trace whom, 0 to 3 (kernel.yama.ptrace_scope); 0 is
// the kernel's own rule, also where Yama is not in the kernel. NOT_FOUND where
// /proc/sys is not visible from here.
absl::StatusOr<int> PtraceScope(const std::string& root = "");

// Whether /dev/nvidiactl exists: the kernel's part of the driver is loaded and
// visible here.
absl::StatusOr<bool> HasNvidiaControlNode(const std::string& root = "");

// Whether /dev/dxg exists, by which programs in WSL2 reach the GPU: there the
// kernel's part of the driver is Windows's.
absl::StatusOr<bool> HasWsl2GpuNode(const std::string& root = "");

// NVIDIA's Multi-Process Service, by what its control daemon leaves in the file
// system. Nothing is connected to and nothing is started; a CUDA program whose
// driver finds the same does connect, and the daemon then starts a server.
struct MpsDaemon {
  // Where the driver looks for it: $CUDA_MPS_PIPE_DIRECTORY, or its default.
  std::string directory;
  bool has_socket = false;  // The daemon's is there, or was left behind.
  // The daemon, where it runs and is visible from here (0: not). It is not from
  // a container with process ids of its own.
  std::int64_t process = 0;
};
absl::StatusOr<MpsDaemon> LookForMps(const std::string& root = "");

// NVIDIA's modules of the kernel, by what they leave in the file system.
struct NvidiaModules {
  // Whether the driver's own are those of open source, which alone have
  // dma-buf; nothing where they are not loaded, or not visible from here.
  std::optional<bool> open;
  // Those that give memory to network cards (nvidia_peermem, nv_peer_mem),
  // disks (nvidia_fs) and the CPU (gdrdrv), as far as they are loaded; nothing
  // where /sys/module is not visible from here.
  std::optional<std::vector<std::string>> loaded;
};
absl::StatusOr<NvidiaModules> LookForNvidiaModules(
    const std::string& root = "");

// The folder of the running program, without a separator at the end.
absl::StatusOr<std::string> FolderOfProgram();

// Whether standard output is a terminal that understands colour sequences.
bool StandardOutputTakesColour();

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_OS_SURROUNDINGS_H_
