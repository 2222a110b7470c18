#include "fabric/topology.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/annotate.h"

namespace vmm::fabric {
namespace {

absl::StatusOr<FabricInfo> WithoutNvml(const absl::Status& why,
                                       const FabricOtherwise& otherwise,
                                       std::size_t i) {
  if (otherwise == nullptr) return why;
  absl::StatusOr<FabricInfo> told = otherwise(i);
  if (told.ok()) return told;
  return platform::Annotate(
      why, "",
      absl::StrCat("Of the fabric the CUDA driver says nothing either: ",
                   told.status().message()));
}

GpuTopology Ask(const absl::StatusOr<Nvml>& nvml, const Uuid& uuid,
                const FabricOtherwise& otherwise, std::size_t i) {
  if (!nvml.ok()) {
    return {uuid, nvml.status(), WithoutNvml(nvml.status(), otherwise, i),
            nvml.status()};
  }
  const absl::StatusOr<Nvml::Gpu> gpu = nvml->Find(uuid);
  if (!gpu.ok()) return {uuid, gpu.status(), gpu.status(), gpu.status()};
  return {uuid, gpu, nvml->Fabric(*gpu), nvml->InMigMode(*gpu)};
}

}  // namespace

Topology ReadTopology(absl::StatusOr<Nvml> nvml, absl::Span<const Uuid> uuids,
                      const std::string& root,
                      const FabricOtherwise& otherwise) {
  std::vector<GpuTopology> gpus;
  gpus.reserve(uuids.size());
  for (std::size_t i = 0; i < uuids.size(); ++i) {
    gpus.push_back(Ask(nvml, uuids[i], otherwise, i));
  }
  absl::StatusOr<std::string> version =
      nvml.ok() ? nvml->DriverVersion() : nvml.status();
  const absl::StatusOr<bool> confidential =
      nvml.ok() ? nvml->ConfidentialComputing() : nvml.status();
  return {std::move(nvml), std::move(version), confidential, std::move(gpus),
          ReadImex(root)};
}

ImexTopology ReadImex(const std::string& root) {
  return {platform::ImexChannels(root), platform::ImexChannelMajor(root),
          platform::ImexDaemonSeen(root)};
}

std::optional<bool> InOneDomain(const GpuTopology& a, const GpuTopology& b) {
  if (!a.fabric.ok() || !b.fabric.ok()) return std::nullopt;
  return a.fabric->joined() && b.fabric->joined() &&
         a.fabric->cluster == b.fabric->cluster &&
         a.fabric->clique == b.fabric->clique;
}

}  // namespace vmm::fabric
