// `vmmshare weights`: looks at the tensor sets that a keeper has.
#ifndef VMMSHARE_VMM_TOOL_WEIGHTS_H_
#define VMMSHARE_VMM_TOOL_WEIGHTS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "platform/os/process.h"
#include "vmm/weights/tensor_set.h"

namespace vmm::tool {

struct WeightsOptions {
  std::string verb;  // "list", "show", "verify", "drop".
  std::string name;  // Of the set; empty with "list".
  std::string address;
  std::vector<platform::UserId> allowed;  // Whose keeper it may be as well.
  std::string driver = "system";          // As DoctorOptions::driver.
  bool json = false;
  bool help = false;
};

// `words` after "weights". INVALID_ARGUMENT says which word is wrong, and what
// could stand there.
absl::StatusOr<WeightsOptions> ParseWeightsOptions(
    const std::vector<std::string>& words);

// What `vmmshare weights show` prints, and with --json.
std::string AsText(const std::string& name, const TensorManifest& manifest);
std::string AsJson(const std::string& name, const TensorManifest& manifest);

// Runs it; returns the process's exit status.
int Weights(const WeightsOptions& options);

}  // namespace vmm::tool

#endif  // VMMSHARE_VMM_TOOL_WEIGHTS_H_
