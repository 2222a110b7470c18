// A device of a Report for programs: see print_json_parts.h.
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "vmm/tool/print_json_parts.h"

namespace vmm::tool {
namespace {

Json FabricJson(const absl::StatusOr<fabric::FabricInfo>& info) {
  Json object = Json::object();
  object["error"] = ErrorJson(info.status());
  if (!info.ok()) return object;
  // What NVML alone knows is null where the driver was asked instead.
  const bool of_nvml = !info->of_driver;
  object["source"] = of_nvml ? "nvml" : "driver";
  object["state"] = of_nvml ? Json(fabric::NameOf(info->state)) : Json();
  object["status"] = of_nvml ? Json(info->status) : Json();
  object["status_text"] = of_nvml ? Json(info->status_text) : Json();
  object["cluster"] = fabric::UuidText(info->cluster);
  object["clique"] = info->clique;
  object["health_mask"] = of_nvml ? Json(info->health) : Json();
  return object;
}

Json KindJson(const KindReport& report) {
  Json object = Json::object();
  object["kind"] = FlagOf(report.kind);
  object["name"] = NameOf(report.kind);
  object["attribute"] = ValueJson(report.attribute);
  object["tried"] = report.offered;
  object["touched"] = report.touched;
  object["usable"] = report.usable();
  object["error"] = report.offered ? ErrorJson(report.tried) : Json();
  object["reasons"] = FindingsJson(report.reasons);
  return object;
}

Json RdmaJson(const RdmaReport& report) {
  Json object = Json::object();
  object["id"] = report.id;
  object["attribute"] = ValueJson(report.attribute);
  object["tried"] = report.asked;
  // Of what was not tried nobody knows.
  object["usable"] = report.asked ? Json(report.usable()) : Json();
  object["error"] = ErrorJson(report.tried);
  object["reasons"] = FindingsJson(report.reasons);
  return object;
}

// Of what was not tried nobody knows.
Json LegacyJson(const std::optional<absl::Status>& tried) {
  Json object = Json::object();
  object["tried"] = tried.has_value();
  object["exported"] = tried.has_value() ? Json(tried->ok()) : Json();
  object["error"] = ErrorJson(tried.value_or(absl::OkStatus()));
  return object;
}

// CUDA's names; null for one that it did not have.
Json ComputeModeJson(const absl::StatusOr<int>& mode) {
  if (!mode.ok()) return Json();
  switch (*mode) {
    case CU_COMPUTEMODE_DEFAULT:
      return Json("default");
    case CU_COMPUTEMODE_PROHIBITED:
      return Json("prohibited");
    case CU_COMPUTEMODE_EXCLUSIVE_PROCESS:
      return Json("exclusive-process");
    default:
      return Json();
  }
}

}  // namespace

Json DeviceJson(const DeviceReport& report, const fabric::GpuTopology& gpu) {
  Json object = Json::object();
  object["ordinal"] = report.device.ordinal();
  object["name"] = report.device.name();
  object["uuid"] = report.device.uuid().ToString();
  object["memory_bytes"] = ValueJson(report.memory);
  object["mps_client"] = ValueJson(report.mps_client);
  Json kinds = Json::array();
  for (const KindReport& kind : report.kinds) kinds.push_back(KindJson(kind));
  object["kinds"] = std::move(kinds);
  Json rdma = Json::array();
  for (const RdmaReport& way : report.rdma) rdma.push_back(RdmaJson(way));
  object["rdma"] = std::move(rdma);
  object["legacy_ipc"] = LegacyJson(report.legacy);
  object["compute_mode"] = ComputeModeJson(report.compute_mode);
  object["fabric"] = FabricJson(gpu.fabric);
  object["mig_instance"] =
      gpu.gpu.ok() ? Json(gpu.gpu->is_mig_instance) : Json();
  object["mig_mode"] = ValueJson(gpu.in_mig_mode);
  return object;
}

}  // namespace vmm::tool
