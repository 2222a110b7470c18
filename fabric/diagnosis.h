// Diagnosis: why fabric handles cannot be had here, and what to do.
//
// "Supported" says the device attribute, NOT_PERMITTED the creation, and
// nobody says why. These are the reasons that can be found from one process;
// docs/fabric.md has them as a table.
#ifndef VMMSHARE_FABRIC_DIAGNOSIS_H_
#define VMMSHARE_FABRIC_DIAGNOSIS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "fabric/topology.h"

namespace vmm::fabric {

// What was found, and what to do about it. A value.
struct Finding {
  // Stable, for programs: "no-channel".
  std::string id;
  std::string text;
  std::string remedy;
};

// What CUDA answered on one device.
struct FabricAttempt {
  // CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED.
  absl::StatusOr<bool> attribute;
  // The real try: create, export, import, map.
  absl::Status tried;
};

// "nvidia-smi -i GPU-... WORDS": without -i it acts on every GPU. The UUID of a
// MIG instance names no GPU, so that N stands for it there.
std::string SmiOf(const GpuTopology& gpu, absl::string_view words);

// Why `attempt` failed on `gpu`, the cause to mend first in front; never empty
// when it failed, empty when it succeeded.
std::vector<Finding> WhyNotFabric(const Topology& topology,
                                  const GpuTopology& gpu,
                                  const FabricAttempt& attempt);

// What is worth knowing though nothing failed: a channel that every local user
// may open, GPUs of different domains, links below their bandwidth, no NVML.
std::vector<Finding> Notes(const Topology& topology);

}  // namespace vmm::fabric

#endif  // VMMSHARE_FABRIC_DIAGNOSIS_H_
