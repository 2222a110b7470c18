#include "vmm/tool/device_notes.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"

namespace vmm::tool {

using fabric::Finding;

void AddNotesOnModes(const Report& report, std::vector<Finding>* notes) {
  for (std::size_t i = 0; i < report.devices.size(); ++i) {
    const absl::StatusOr<bool>& mig = report.topology.gpus[i].in_mig_mode;
    if (mig.ok() && *mig) {
      notes->push_back(
          {"mig-no-peers",
           absl::StrCat("device ", report.devices[i].device.ordinal(),
                        " is, or is split into, MIG instances: they have no "
                        "peer access to each other"),
           "Share within one instance, or use whole GPUs."});
    }
  }
  for (std::size_t i = 0; i < report.devices.size(); ++i) {
    const DeviceReport& device = report.devices[i];
    if (!device.compute_mode.ok()) continue;
    const std::string mend =
        fabric::SmiOf(report.topology.gpus[i], "-c DEFAULT");
    const std::string name = absl::StrCat("device ", device.device.ordinal());
    if (*device.compute_mode == CU_COMPUTEMODE_PROHIBITED) {
      notes->push_back(
          {"compute-prohibited",
           absl::StrCat(name,
                        " is in compute mode PROHIBITED: no process can "
                        "have a context on it, so none can use its "
                        "memory"),
           absl::StrCat("As root: ", mend, ".")});
    } else if (*device.compute_mode == CU_COMPUTEMODE_EXCLUSIVE_PROCESS) {
      notes->push_back(
          {"compute-exclusive",
           absl::StrCat(name,
                        " is in compute mode EXCLUSIVE_PROCESS: one "
                        "process at a time has a context on it, and the "
                        "peer's is refused with DEVICE_UNAVAILABLE"),
           absl::StrCat("Let both be clients of MPS (docs/mps.md), or as "
                        "root: ",
                        mend, ".")});
    }
  }
  const absl::StatusOr<bool>& confidential =
      report.topology.confidential_computing;
  if (confidential.ok() && *confidential) {
    notes->push_back(
        {"confidential-computing",
         "the GPUs are in confidential computing mode, in which NVIDIA "
         "supports neither legacy CUDA IPC nor, but for its PPCIE mode, peer "
         "access between GPUs",
         "Go by the tries above: nobody has run vmmshare there. What they "
         "refuse needs a machine without this mode."});
  }
}

void AddNotesOnMps(const Report& report, std::vector<Finding>* notes) {
  const auto is_client = [&report](bool wanted) {
    return std::any_of(report.devices.begin(), report.devices.end(),
                       [wanted](const DeviceReport& device) {
                         return device.mps_client.ok() &&
                                *device.mps_client == wanted;
                       });
  };
  if (is_client(true)) {
    notes->push_back(
        {"mps-client",
         "this process is a client of MPS: a fault of any client, or its death "
         "in the middle of a kernel, ends the contexts of all",
         "Put only processes under one MPS that may die together; docs/mps.md "
         "says what else differs."});
  }
  const absl::StatusOr<platform::MpsDaemon>& mps = report.limits.mps;
  if (is_client(false) && mps.ok() && mps->process != 0) {
    notes->push_back(
        {"mps-not-a-client",
         absl::StrCat("the control daemon of MPS runs (process ", mps->process,
                      "), and this process is not its client"),
         "Is it the daemon of another user, or of other devices "
         "(CUDA_VISIBLE_DEVICES where it was started)?"});
  }
  const bool limited = report.limits.mps_threads.has_value() ||
                       report.limits.mps_memory.has_value();
  if (is_client(true) && report.limits.mps_memory.has_value()) {
    notes->push_back(
        {"mps-memory-limit",
         absl::StrCat("MPS lets this process have no more device memory than "
                      "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=\"",
                      *report.limits.mps_memory,
                      "\"; more is OUT_OF_MEMORY, also where the device has "
                      "it, and memory of cuMemCreate counts"),
         "Raise it where the process is started, or as the daemon's default."});
  }
  if (is_client(false) && !is_client(true) && limited) {
    notes->push_back(
        {"mps-limit-without-mps",
         "limits of MPS are set in the environment, and this process is not "
         "its client: nothing enforces them",
         "Start MPS's control daemon (docs/mps.md), or unset "
         "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE and "
         "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT."});
  }
}

}  // namespace vmm::tool
