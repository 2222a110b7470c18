// Topology: what this machine says of its NVLink fabric, GPU by GPU.
//
// Facts only, from NVML and from the file system; diagnosis.h draws the
// conclusions. What could not be learned is a Status in its place, and the
// rest is there all the same. Nothing is created or changed.
#ifndef VMMSHARE_FABRIC_TOPOLOGY_H_
#define VMMSHARE_FABRIC_TOPOLOGY_H_

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "fabric/nvml.h"
#include "platform/os/imex.h"

namespace vmm::fabric {

// One device that CUDA sees, as NVML knows it.
struct GpuTopology {
  Uuid uuid{};
  absl::StatusOr<Nvml::Gpu> gpu;
  absl::StatusOr<FabricInfo> fabric;
  absl::StatusOr<bool> in_mig_mode;
};

struct ImexTopology {
  absl::StatusOr<std::vector<platform::ImexChannel>> channels;
  // Of the class the loaded driver registered; nothing when it has none.
  absl::StatusOr<std::optional<unsigned>> major;
  absl::StatusOr<bool> daemon_seen;
};

struct Topology {
  absl::StatusOr<Nvml> nvml;
  absl::StatusOr<std::string> driver_version;
  absl::StatusOr<bool> confidential_computing;  // Of the machine.
  std::vector<GpuTopology> gpus;  // In the order of the UUIDs given.
  ImexTopology imex;
};

// What is known without NVML of the fabric of the i-th device.
using FabricOtherwise =
    std::function<absl::StatusOr<FabricInfo>(std::size_t i)>;

// Asks `nvml`, which may be the reason why there is none, for the devices
// `uuids`, as CUDA names them. `root`: see platform/os/imex.h. `otherwise`, unless
// null, is asked where there is no NVML.
Topology ReadTopology(absl::StatusOr<Nvml> nvml, absl::Span<const Uuid> uuids,
                      const std::string& root = "",
                      const FabricOtherwise& otherwise = nullptr);

// What the system says of IMEX now.
ImexTopology ReadImex(const std::string& root = "");

// Whether fabric handles could lead from one to the other: both have joined,
// and cluster and clique are the same. Nothing when it is not known. Between
// nodes only a handle exchanged with the peer itself is proof.
std::optional<bool> InOneDomain(const GpuTopology& a, const GpuTopology& b);

}  // namespace vmm::fabric

#endif  // VMMSHARE_FABRIC_TOPOLOGY_H_
