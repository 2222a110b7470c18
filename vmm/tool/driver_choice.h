// The driver and the NVML that the command line names.
#ifndef VMMSHARE_VMM_TOOL_DRIVER_CHOICE_H_
#define VMMSHARE_VMM_TOOL_DRIVER_CHOICE_H_

#include <string>

#include "absl/status/statusor.h"
#include "fabric/nvml.h"
#include "platform/cuda/driver.h"
#include "vmm/tool/command_line.h"

namespace vmm::tool {

struct DriverChoice {
  absl::StatusOr<platform::Driver> driver;
  absl::StatusOr<fabric::Nvml> nvml;
  std::string nvml_path;  // Empty: the system's.
};

// The driver that --driver=`named` means. With --driver=host it is the file that
// $VMMSHARE_HOSTDRIVER names, else the one built or installed with this program.
absl::StatusOr<platform::Driver> LoadDriver(const std::string& named);

// Loads both. The host-memory driver is asked as NVML too: the system's knows
// nothing of its devices.
DriverChoice ChooseDriver(const DoctorOptions& options);

}  // namespace vmm::tool

#endif  // VMMSHARE_VMM_TOOL_DRIVER_CHOICE_H_
