#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "vmm/tool/json.h"
#include "vmm/tool/print.h"

namespace vmm::tool {
namespace {

using fabric::Finding;

Json ErrorJson(const absl::Status& status) {
  Json error = Json::Object();
  error.Add("code", Json::Text(absl::StatusCodeToString(status.code())));
  error.Add("message", Json::Text(status.message()));
  const std::optional<CUresult> result = platform::ResultOf(status);
  error.Add("cuda_result", result.has_value()
                               ? Json::Integer(static_cast<int>(*result))
                               : Json::Null());
  return error;
}

Json ValueJson(bool value) { return Json::Bool(value); }
Json ValueJson(int value) { return Json::Integer(value); }
Json ValueJson(std::uint64_t value) { return Json::Integer(value); }
Json ValueJson(const std::string& value) { return Json::Text(value); }
template <typename T>
Json ValueJson(const std::optional<T>& value) {
  return value.has_value() ? ValueJson(*value) : Json::Null();
}

// What is not known is null, whatever the reason.
template <typename T>
Json ValueJson(const absl::StatusOr<T>& value) {
  return value.ok() ? ValueJson(*value) : Json::Null();
}

Json FindingsJson(const std::vector<Finding>& findings) {
  Json array = Json::Array();
  for (const Finding& finding : findings) {
    Json object = Json::Object();
    object.Add("id", Json::Text(finding.id));
    object.Add("text", Json::Text(finding.text));
    object.Add("remedy", Json::Text(finding.remedy));
    array.Append(std::move(object));
  }
  return array;
}

Json DriverJson(const absl::StatusOr<platform::Driver>& driver) {
  Json object = Json::Object();
  if (!driver.ok()) {
    object.Add("error", ErrorJson(driver.status()));
    return object;
  }
  object.Add("error", Json::Null());
  object.Add("description", Json::Text(driver->Describe()));
  object.Add("cuda_version", Json::Integer(driver->version()));
  object.Add("host_memory", Json::Bool(driver->is_host_memory()));
  return object;
}

Json NvmlJson(const fabric::Topology& topology) {
  Json object = Json::Object();
  object.Add("error", topology.nvml.ok() ? Json::Null()
                                         : ErrorJson(topology.nvml.status()));
  object.Add("driver_version", ValueJson(topology.driver_version));
  object.Add("confidential_computing",
             ValueJson(topology.confidential_computing));
  return object;
}

Json FabricJson(const absl::StatusOr<fabric::FabricInfo>& info) {
  Json object = Json::Object();
  if (!info.ok()) {
    object.Add("error", ErrorJson(info.status()));
    return object;
  }
  // What NVML alone knows is null where the driver was asked instead.
  const bool of_nvml = !info->of_driver;
  object.Add("error", Json::Null());
  object.Add("source", Json::Text(of_nvml ? "nvml" : "driver"));
  object.Add("state",
             of_nvml ? Json::Text(fabric::NameOf(info->state)) : Json::Null());
  object.Add("status", of_nvml ? Json::Integer(info->status) : Json::Null());
  object.Add("status_text",
             of_nvml ? Json::Text(info->status_text) : Json::Null());
  object.Add("cluster", Json::Text(fabric::UuidText(info->cluster)));
  object.Add("clique", Json::Integer(info->clique));
  object.Add("health_mask",
             of_nvml ? Json::Integer(info->health) : Json::Null());
  return object;
}

Json KindJson(const KindReport& report) {
  Json object = Json::Object();
  object.Add("kind", Json::Text(FlagOf(report.kind)));
  object.Add("name", Json::Text(NameOf(report.kind)));
  object.Add("attribute", ValueJson(report.attribute));
  object.Add("tried", Json::Bool(report.offered));
  object.Add("touched", Json::Bool(report.touched));
  object.Add("usable", Json::Bool(report.usable()));
  object.Add("error", !report.offered || report.tried.ok()
                          ? Json::Null()
                          : ErrorJson(report.tried));
  object.Add("reasons", FindingsJson(report.reasons));
  return object;
}

Json RdmaJson(const RdmaReport& report) {
  Json object = Json::Object();
  object.Add("id", Json::Text(report.id));
  object.Add("attribute", ValueJson(report.attribute));
  object.Add("tried", Json::Bool(report.asked));
  // Of what was not tried nobody knows.
  object.Add("usable",
             report.asked ? Json::Bool(report.usable()) : Json::Null());
  object.Add("error",
             report.tried.ok() ? Json::Null() : ErrorJson(report.tried));
  object.Add("reasons", FindingsJson(report.reasons));
  return object;
}

// Of what was not tried nobody knows.
Json LegacyJson(const std::optional<absl::Status>& tried) {
  Json object = Json::Object();
  object.Add("tried", Json::Bool(tried.has_value()));
  object.Add("exported",
             tried.has_value() ? Json::Bool(tried->ok()) : Json::Null());
  object.Add("error", !tried.has_value() || tried->ok() ? Json::Null()
                                                        : ErrorJson(*tried));
  return object;
}

// CUDA's names; null for one that it did not have.
Json ComputeModeJson(const absl::StatusOr<int>& mode) {
  if (!mode.ok()) return Json::Null();
  switch (*mode) {
    case CU_COMPUTEMODE_DEFAULT:
      return Json::Text("default");
    case CU_COMPUTEMODE_PROHIBITED:
      return Json::Text("prohibited");
    case CU_COMPUTEMODE_EXCLUSIVE_PROCESS:
      return Json::Text("exclusive-process");
    default:
      return Json::Null();
  }
}

Json DeviceJson(const DeviceReport& report, const fabric::GpuTopology& gpu) {
  Json object = Json::Object();
  object.Add("ordinal", Json::Integer(report.device.ordinal()));
  object.Add("name", Json::Text(report.device.name()));
  object.Add("uuid", Json::Text(report.device.uuid().ToString()));
  object.Add("memory_bytes", ValueJson(report.memory));
  object.Add("mps_client", ValueJson(report.mps_client));
  Json kinds = Json::Array();
  for (const KindReport& kind : report.kinds) kinds.Append(KindJson(kind));
  object.Add("kinds", std::move(kinds));
  Json rdma = Json::Array();
  for (const RdmaReport& way : report.rdma) rdma.Append(RdmaJson(way));
  object.Add("rdma", std::move(rdma));
  object.Add("legacy_ipc", LegacyJson(report.legacy));
  object.Add("compute_mode", ComputeModeJson(report.compute_mode));
  object.Add("fabric", FabricJson(gpu.fabric));
  object.Add("mig_instance", gpu.gpu.ok() ? Json::Bool(gpu.gpu->is_mig_instance)
                                          : Json::Null());
  object.Add("mig_mode", ValueJson(gpu.in_mig_mode));
  return object;
}

Json PairJson(const PairReport& pair) {
  Json object = Json::Object();
  object.Add("a", Json::Integer(pair.a));
  object.Add("b", Json::Integer(pair.b));
  object.Add("access_ab", ValueJson(pair.access_ab));
  object.Add("access_ba", ValueJson(pair.access_ba));
  object.Add("atomics_ab", ValueJson(pair.atomics_ab));
  object.Add("atomics_ba", ValueJson(pair.atomics_ba));
  object.Add("performance_rank", ValueJson(pair.performance_rank));
  object.Add("nvlink", ValueJson(pair.nvlink));
  object.Add("one_fabric_domain", ValueJson(pair.one_domain));
  return object;
}

Json ImexJson(const fabric::ImexTopology& imex) {
  Json object = Json::Object();
  object.Add("class_registered", imex.major.ok()
                                     ? Json::Bool(imex.major->has_value())
                                     : Json::Null());
  object.Add("class_major", imex.major.ok() && imex.major->has_value()
                                ? Json::Integer(**imex.major)
                                : Json::Null());
  object.Add("daemon_visible", ValueJson(imex.daemon_seen));
  object.Add("channels_error", imex.channels.ok()
                                   ? Json::Null()
                                   : ErrorJson(imex.channels.status()));
  Json channels = Json::Array();
  if (imex.channels.ok()) {
    for (const platform::ImexChannel& channel : *imex.channels) {
      Json node = Json::Object();
      node.Add("path", Json::Text(channel.path));
      node.Add("number", channel.number.has_value()
                             ? Json::Integer(*channel.number)
                             : Json::Null());
      node.Add("mode", Json::Text(absl::StrFormat("%04o", channel.mode)));
      node.Add("owner", Json::Text(channel.owner.text()));
      node.Add("is_device", Json::Bool(channel.is_device));
      node.Add("major",
               channel.is_device ? Json::Integer(channel.major) : Json::Null());
      node.Add("usable", Json::Bool(channel.usable));
      node.Add("world_writable", Json::Bool(channel.world_writable()));
      node.Add("error",
               channel.usable ? Json::Null() : ErrorJson(channel.reason));
      channels.Append(std::move(node));
    }
  }
  object.Add("channels", std::move(channels));
  return object;
}

Json LimitsJson(const LimitsReport& limits) {
  Json object = Json::Object();
  const auto& descriptors = limits.descriptors;
  object.Add("descriptors_soft", descriptors.ok()
                                     ? Json::Integer(descriptors->soft)
                                     : Json::Null());
  // Without limit: -1.
  object.Add("descriptors_hard", descriptors.ok()
                                     ? Json::Integer(descriptors->hard)
                                     : Json::Null());
  const auto& space = limits.shared_memory;
  object.Add("shared_memory_bytes",
             space.ok() ? Json::Integer(space->total) : Json::Null());
  object.Add("shared_memory_free_bytes",
             space.ok() ? Json::Integer(space->free) : Json::Null());
  object.Add("in_container", limits.container.ok()
                                 ? Json::Bool(!limits.container->empty())
                                 : Json::Null());
  object.Add("container_mark", ValueJson(limits.container));
  object.Add("wsl2", ValueJson(limits.wsl2));
  object.Add("ptrace_scope", ValueJson(limits.ptrace_scope));
  object.Add("process_reference", Json::Bool(limits.process_reference.ok()));
  object.Add("nvidia_control_node", ValueJson(limits.control_node));
  const auto& mps = limits.mps;
  object.Add("mps_directory",
             mps.ok() ? Json::Text(mps->directory) : Json::Null());
  object.Add("mps_socket",
             mps.ok() ? Json::Bool(mps->has_socket) : Json::Null());
  object.Add("mps_process", mps.ok() && mps->process != 0
                                ? Json::Integer(mps->process)
                                : Json::Null());
  object.Add("mps_thread_percentage", ValueJson(limits.mps_threads));
  object.Add("mps_memory_limit", ValueJson(limits.mps_memory));
  const auto& modules = limits.modules;
  object.Add("open_kernel_modules",
             modules.ok() ? ValueJson(modules->open) : Json::Null());
  Json loaded = Json::Array();
  if (modules.ok()) {
    for (const std::string& name : modules->loaded) {
      loaded.Append(Json::Text(name));
    }
  }
  object.Add("rdma_modules", modules.ok() ? std::move(loaded) : Json::Null());
  object.Add("cuda_visible_devices", ValueJson(limits.visible_devices));
  return object;
}

}  // namespace

std::string AsJson(const Report& report) {
  Json object = Json::Object();
  object.Add("schema", Json::Text("vmmshare-doctor/1"));
  object.Add("vmmshare_version", Json::Text(VMMSHARE_VERSION));
  object.Add("driver", DriverJson(report.driver));
  object.Add("nvml", NvmlJson(report.topology));
  Json devices = Json::Array();
  for (std::size_t i = 0; i < report.devices.size(); ++i) {
    devices.Append(DeviceJson(report.devices[i], report.topology.gpus[i]));
  }
  object.Add("devices", std::move(devices));
  object.Add("devices_error", report.devices_status.ok()
                                  ? Json::Null()
                                  : ErrorJson(report.devices_status));
  Json pairs = Json::Array();
  for (const PairReport& pair : report.pairs) pairs.Append(PairJson(pair));
  object.Add("pairs", std::move(pairs));
  object.Add("imex", ImexJson(report.topology.imex));
  object.Add("limits", LimitsJson(report.limits));
  object.Add("notes", FindingsJson(report.notes));
  object.Add("required", report.required.has_value()
                             ? Json::Text(FlagOf(*report.required))
                             : Json::Null());
  object.Add("exit_code", Json::Integer(report.exit_code()));
  return object.Print();
}

}  // namespace vmm::tool
