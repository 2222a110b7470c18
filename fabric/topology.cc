#include "fabric/topology.h"

#include <utility>

namespace vmm::fabric {
namespace {

GpuTopology Ask(const absl::StatusOr<Nvml>& nvml, const Uuid& uuid) {
  if (!nvml.ok()) {
    return {uuid, nvml.status(), nvml.status(), nvml.status()};
  }
  const absl::StatusOr<Nvml::Gpu> gpu = nvml->Find(uuid);
  if (!gpu.ok()) return {uuid, gpu.status(), gpu.status(), gpu.status()};
  return {uuid, gpu, nvml->Fabric(*gpu), nvml->InMigMode(*gpu)};
}

}  // namespace

Topology ReadTopology(absl::StatusOr<Nvml> nvml, absl::Span<const Uuid> uuids,
                      const std::string& root) {
  std::vector<GpuTopology> gpus;
  gpus.reserve(uuids.size());
  for (const Uuid& uuid : uuids) gpus.push_back(Ask(nvml, uuid));
  absl::StatusOr<std::string> version =
      nvml.ok() ? nvml->DriverVersion() : nvml.status();
  const absl::StatusOr<bool> confidential =
      nvml.ok() ? nvml->ConfidentialComputing() : nvml.status();
  return {std::move(nvml), std::move(version), confidential, std::move(gpus),
          ImexTopology{platform::ImexChannels(root),
                       platform::ImexChannelMajor(root),
                       platform::ImexDaemonSeen(root)}};
}

std::optional<bool> InOneDomain(const GpuTopology& a, const GpuTopology& b) {
  if (!a.fabric.ok() || !b.fabric.ok()) return std::nullopt;
  return a.fabric->joined() && b.fabric->joined() &&
         a.fabric->cluster == b.fabric->cluster &&
         a.fabric->clique == b.fabric->clique;
}

}  // namespace vmm::fabric
