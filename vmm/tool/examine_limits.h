// What of the system around a process bears on sharing: limits, containers, MPS.
#ifndef VMMSHARE_VMM_TOOL_EXAMINE_LIMITS_H_
#define VMMSHARE_VMM_TOOL_EXAMINE_LIMITS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "platform/os/surroundings.h"

namespace vmm::tool {

struct LimitsReport {
  absl::StatusOr<platform::DescriptorLimits> descriptors;
  absl::StatusOr<platform::FileSpace> shared_memory;
  absl::StatusOr<std::string> container;  // "" where nothing shows one.
  absl::StatusOr<bool> wsl2;
  absl::StatusOr<int> ptrace_scope;
  absl::StatusOr<bool> control_node;  // /dev/nvidiactl.
  absl::StatusOr<platform::MpsDaemon> mps;
  absl::StatusOr<platform::NvidiaModules> modules;
  // Whether a reference to a process can be had (pidfd).
  absl::Status process_reference;
  // Where sockets go when no folder is named; made where it is this user's own.
  // One was made in it.
  absl::StatusOr<std::string> socket_folder;
  absl::Status boot_id;
  absl::Status thread;  // Whether one more can be started.
  std::optional<std::string> visible_devices;  // CUDA_VISIBLE_DEVICES.
  std::optional<std::string> connections;      // CUDA_DEVICE_MAX_CONNECTIONS.
  // CUDA_MPS_ACTIVE_THREAD_PERCENTAGE and CUDA_MPS_PINNED_DEVICE_MEM_LIMIT. What
  // the daemon was told to default to cannot be seen from here.
  std::optional<std::string> mps_threads;
  std::optional<std::string> mps_memory;
  bool user_is_unknown = false;  // platform::CurrentUserIsUnknown().
  bool wsl2_has_no_gpu = false;  // It is WSL2, and /dev/dxg is not here.
};

// As `ulimit` has it.
std::string LimitText(std::uint64_t limit);

// `root`: as DoctorOptions::root.
LimitsReport ExamineLimits(const std::string& root);

}  // namespace vmm::tool

#endif  // VMMSHARE_VMM_TOOL_EXAMINE_LIMITS_H_
