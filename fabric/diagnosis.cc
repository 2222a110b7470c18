#include "fabric/diagnosis.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fabric/channel_diagnosis.h"
#include "platform/cuda/driver.h"

namespace vmm::fabric {
namespace {

// CUDA_ERROR_FABRIC_NOT_READY of CUDA 13.4, which older headers lack.
constexpr auto kFabricNotReady = static_cast<CUresult>(919);

using Findings = std::vector<Finding>;

// Of the GPU: what keeps it from any fabric. `driver_said_so`: that it has not
// joined yet.
void AddStateOfGpu(const GpuTopology& gpu, bool driver_said_so,
                   Findings* found) {
  if (gpu.in_mig_mode.ok() && *gpu.in_mig_mode) {
    found->push_back({"mig",
                      "the GPU is split into MIG instances, which take no part "
                      "in an NVLink fabric",
                      absl::StrCat("Use a whole GPU: ", SmiOf(gpu, "-mig 0"),
                                   ", as root. Within the host, share by the "
                                   "system's own handles.")});
  }
  if (!gpu.fabric.ok()) return;
  const FabricInfo& info = *gpu.fabric;
  switch (info.state) {
    case FabricState::kNotSupported:
      found->push_back(
          {"fabric-not-supported",
           "NVML: this GPU takes no part in an NVLink fabric",
           "Share within the host, by the system's own handles; fabric "
           "handles need a multi-node NVLink machine."});
      return;
    case FabricState::kNotStarted:
    case FabricState::kInProgress:
      if (driver_said_so) return;
      found->push_back(
          {"fabric-not-ready",
           absl::StrCat("NVML: joining the NVLink fabric is ",
                        NameOf(info.state)),
           "Wait and try again. If it stays so: is nvidia-fabricmanager "
           "running (systemctl status nvidia-fabricmanager), and on the "
           "NVLink switches the fabric's manager? nvidia-smi -q shows the "
           "state under Fabric."});
      return;
    case FabricState::kCompleted:
      break;
  }
  if (info.status != 0) {
    found->push_back(
        {"fabric-failed",
         absl::StrCat("NVML: joining the NVLink fabric failed with status ",
                      info.status, " (", info.status_text, ")"),
         "Look into /var/log/fabricmanager.log and dmesg for NVLink and Xid "
         "messages; a GPU that failed to join needs a reset or a reboot of "
         "the node, as root."});
  }
}

// All that can be seen is as it should be, and the driver refuses.
Finding Unseen(const Topology& topology, const GpuTopology& gpu) {
  if (gpu.fabric.ok() && !gpu.fabric->in_a_cluster()) {
    return {"no-cluster",
            "the GPU belongs to no NVLink domain beyond this host (its "
            "cluster UUID is zero)",
            "Share within the host, by the system's own handles. On a "
            "multi-node machine: the fabric's manager has not put this GPU "
            "into a partition."};
  }
  const absl::StatusOr<bool>& daemon = topology.imex.daemon_seen;
  if (daemon.ok() && !*daemon) {
    return {"no-daemon",
            "no process nvidia-imex is visible here (one outside of a "
            "container is not)",
            "On the host, as root: list the domain's nodes in "
            "/etc/nvidia-imex/nodes_config.cfg, the same on each, and "
            "systemctl enable --now nvidia-imex."};
  }
  return {"domain-not-ready",
          "channel, fabric and daemon look right from here, so the IMEX "
          "domain refuses",
          "Run nvidia-imex-ctl -N on the host: every node must be READY and "
          "connected; nodes_config.cfg must be the same on each; see "
          "/var/log/nvidia-imex.log."};
}

}  // namespace

std::string SmiOf(const GpuTopology& gpu, absl::string_view words) {
  if (gpu.gpu.ok() && gpu.gpu->is_mig_instance) {
    return absl::StrCat("nvidia-smi -i N ", words,
                        " (N: its GPU's index, see nvidia-smi -L)");
  }
  return absl::StrCat(
      "nvidia-smi -i GPU-", UuidText(gpu.uuid), " ", words,
      gpu.gpu.ok() ? ""
                   : " (of a MIG instance -i its GPU's index: nvidia-smi -L)");
}

std::vector<Finding> WhyNotFabric(const Topology& topology,
                                  const GpuTopology& gpu,
                                  const FabricAttempt& attempt) {
  Findings found;
  if (attempt.tried.ok()) return found;
  const std::optional<CUresult> result = platform::ResultOf(attempt.tried);
  if (result == CUDA_ERROR_OUT_OF_MEMORY) {
    found.push_back({"out-of-memory",
                     "the device has no memory left to try with; this says "
                     "nothing of fabric handles",
                     "Free some: nvidia-smi shows who holds it with a context, "
                     "`vmmshare keep --list` what a keeper holds, which has "
                     "none."});
    return found;
  }
  if (result == kFabricNotReady) {
    found.push_back({"fabric-not-ready",
                     "the driver says that the GPU has not joined its NVLink "
                     "fabric yet",
                     "Try again in a minute. If it stays so: the log of "
                     "nvidia-fabricmanager on the host says why."});
  }
  if (!attempt.attribute.ok() || !*attempt.attribute) {
    found.push_back(
        {"no-attribute",
         attempt.attribute.ok()
             ? "the device attribute says that it has no fabric handles"
             : absl::StrCat("the driver does not know the device attribute: ",
                            attempt.attribute.status().message()),
         "Fabric handles came with CUDA 12.3 and need a GPU with multi-node "
         "NVLink: share within the host, or install a newer driver."});
  }
  AddStateOfGpu(gpu, result == kFabricNotReady, &found);
  if (std::optional<Finding> channel = ChannelFinding(topology.imex)) {
    found.push_back(*std::move(channel));
  }
  if (found.empty()) found.push_back(Unseen(topology, gpu));
  return found;
}

std::vector<Finding> Notes(const Topology& topology) {
  Findings notes;
  if (!topology.nvml.ok()) {
    // What the driver said of the fabric in its place, or why it said nothing.
    const bool told =
        !topology.gpus.empty() && topology.gpus.front().fabric.ok();
    const absl::Status& why = topology.gpus.empty() || told
                                  ? topology.nvml.status()
                                  : topology.gpus.front().fabric.status();
    std::string remedy =
        told ? "Only if they matter: without NVML NVLink and MIG mode stay "
               "unknown, and of the fabric all but cluster and clique."
             : "Only if they matter: without NVML the fabric's state, NVLink "
               "and MIG mode stay unknown.";
    // Without a GPU nothing works.
    if (!topology.gpus.empty()) remedy += " Sharing works without.";
    notes.push_back({"no-nvml", std::string(why.message()), std::move(remedy)});
  }
  if (topology.imex.channels.ok()) {
    for (const platform::ImexChannel& channel : *topology.imex.channels) {
      if (!channel.is_device || !channel.world_writable()) continue;
      notes.push_back(
          {"channel-world-writable",
           absl::StrCat("every local user may open ", Facts(channel),
                        ", and so guess and use the fabric handles in it"),
           absl::StrCat("On a node with several tenants: a channel each, and "
                        "chmod o= ",
                        channel.path, ".")});
    }
  }
  for (const GpuTopology& gpu : topology.gpus) {
    if (gpu.fabric.ok() && gpu.fabric->degraded()) {
      notes.push_back({"links-degraded",
                       absl::StrCat("GPU-", UuidText(gpu.uuid),
                                    " has less than its full NVLink bandwidth"),
                       "nvidia-smi nvlink -s shows which links are down."});
    }
    // One that has not joined is in no domain yet.
    const GpuTopology& front = topology.gpus.front();
    if (InOneDomain(front, gpu) == false && front.fabric->joined() &&
        gpu.fabric->joined()) {
      notes.push_back(
          {"two-domains",
           absl::StrCat(
               "GPU-", UuidText(gpu.uuid), " (cluster ",
               UuidText(gpu.fabric->cluster), ", clique ", gpu.fabric->clique,
               ") is in another NVLink domain than GPU-", UuidText(front.uuid),
               " (cluster ", UuidText(front.fabric->cluster), ", clique ",
               front.fabric->clique, ")"),
           "Fabric handles do not lead from one to the other: put the ranks "
           "of a job into one clique."});
    }
  }
  return notes;
}

}  // namespace vmm::fabric
