// What `vmmshare doctor` finds out.
#ifndef VMMSHARE_VMM_TOOL_EXAMINE_H_
#define VMMSHARE_VMM_TOOL_EXAMINE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "fabric/diagnosis.h"
#include "fabric/topology.h"
#include "platform/cuda/driver.h"
#include "vmm/memory/device.h"
#include "vmm/memory/handle_kind.h"
#include "vmm/tool/command_line.h"
#include "vmm/tool/examine_limits.h"
#include "vmm/tool/examine_rdma.h"

namespace vmm::tool {

// One handle kind on one device.
struct KindReport {
  HandleKind kind;
  // False for the kind of another operating system: nothing was tried.
  bool offered = false;
  // What the device attribute says.
  absl::StatusOr<bool> attribute;
  // The real try: create, export, import, map; and touch, if `touched`.
  absl::Status tried;
  bool touched = false;
  // Why the try failed; empty when it did not.
  std::vector<fabric::Finding> reasons = {};

  bool usable() const { return offered && tried.ok(); }
};

struct DeviceReport {
  Device device;
  absl::StatusOr<std::uint64_t> memory;  // Bytes.
  // Whether contexts of this process on it are MPS's.
  absl::StatusOr<bool> mps_client;
  absl::StatusOr<int> compute_mode;  // CUcomputemode.
  std::vector<KindReport> kinds;
  std::vector<RdmaReport> rdma;
  // Whether legacy CUDA IPC has a handle of memory here, for programs that accept
  // it: another process would have to open it. Not tried without a context.
  std::optional<absl::Status> legacy;
};

// Two devices, `a` below `b`, by ordinal. "ab": a reaches memory of b.
struct PairReport {
  int a = 0;
  int b = 0;
  absl::StatusOr<bool> access_ab;
  absl::StatusOr<bool> access_ba;
  absl::StatusOr<bool> atomics_ab;
  absl::StatusOr<bool> atomics_ba;
  // CUDA's rank of the link: 0 is the fastest kind.
  absl::StatusOr<int> performance_rank;
  absl::StatusOr<bool> nvlink;
  std::optional<bool> one_domain;
};

struct Report {
  absl::StatusOr<platform::Driver> driver;
  std::vector<DeviceReport> devices = {};
  absl::Status devices_status;  // Why `devices` could not be listed.
  std::vector<PairReport> pairs = {};
  fabric::Topology topology;  // Its GPUs in the order of `devices`.
  LimitsReport limits;
  // Not of one device, and no reason of a failure.
  std::vector<fabric::Finding> notes = {};
  std::optional<HandleKind> required;

  // The ordinals of the devices on which `kind` does not work.
  std::vector<int> WithoutKind(HandleKind kind) const;
  // The note for which no peer is reached by `kind`, on whatever device: that of
  // the sockets' folder, of who this user is, or of the machine's identity, which
  // descriptors and NT handles need. "" where there is none.
  absl::string_view NoteAgainst(HandleKind kind) const;
  int exit_code() const;
};

Report Examine(const DoctorOptions& options);

}  // namespace vmm::tool

#endif  // VMMSHARE_VMM_TOOL_EXAMINE_H_
