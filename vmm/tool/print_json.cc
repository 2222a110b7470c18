// A Report for programs: see print.h.
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "vmm/tool/print.h"
#include "vmm/tool/print_json_parts.h"

namespace vmm::tool {
namespace {

Json DriverJson(const absl::StatusOr<platform::Driver>& driver) {
  Json object = Json::object();
  object["error"] = ErrorJson(driver.status());
  if (!driver.ok()) return object;
  object["description"] = driver->Describe();
  object["cuda_version"] = driver->version();
  object["host_memory"] = driver->is_host_memory();
  return object;
}

Json NvmlJson(const fabric::Topology& topology) {
  Json object = Json::object();
  object["error"] = ErrorJson(topology.nvml.status());
  object["driver_version"] = ValueJson(topology.driver_version);
  object["confidential_computing"] = ValueJson(topology.confidential_computing);
  return object;
}

Json PairJson(const PairReport& pair) {
  Json object = Json::object();
  object["a"] = pair.a;
  object["b"] = pair.b;
  object["access_ab"] = ValueJson(pair.access_ab);
  object["access_ba"] = ValueJson(pair.access_ba);
  object["atomics_ab"] = ValueJson(pair.atomics_ab);
  object["atomics_ba"] = ValueJson(pair.atomics_ba);
  object["performance_rank"] = ValueJson(pair.performance_rank);
  object["nvlink"] = ValueJson(pair.nvlink);
  object["one_fabric_domain"] = ValueJson(pair.one_domain);
  return object;
}

Json ImexJson(const fabric::ImexTopology& imex) {
  Json object = Json::object();
  object["class_registered"] =
      imex.major.ok() ? Json(imex.major->has_value()) : Json();
  object["class_major"] = ValueJson(imex.major);
  object["daemon_visible"] = ValueJson(imex.daemon_seen);
  object["channels_error"] = ErrorJson(imex.channels.status());
  Json channels = Json::array();
  if (imex.channels.ok()) {
    for (const platform::ImexChannel& channel : *imex.channels) {
      Json node = Json::object();
      node["path"] = channel.path;
      node["number"] = ValueJson(channel.number);
      node["mode"] = absl::StrFormat("%04o", channel.mode);
      node["owner"] = channel.owner.text();
      node["is_device"] = channel.is_device;
      node["major"] = channel.is_device ? Json(channel.major) : Json();
      node["usable"] = channel.usable;
      node["world_writable"] = channel.world_writable();
      node["error"] = channel.usable ? Json() : ErrorJson(channel.reason);
      channels.push_back(std::move(node));
    }
  }
  object["channels"] = std::move(channels);
  return object;
}

Json LimitsJson(const LimitsReport& limits) {
  Json object = Json::object();
  const auto& descriptors = limits.descriptors;
  object["descriptors_soft"] =
      descriptors.ok() ? Json(descriptors->soft) : Json();
  // Without limit: 18446744073709551615, as the system has it.
  object["descriptors_hard"] =
      descriptors.ok() ? Json(descriptors->hard) : Json();
  const auto& space = limits.shared_memory;
  object["shared_memory_bytes"] = space.ok() ? Json(space->total) : Json();
  object["shared_memory_free_bytes"] = space.ok() ? Json(space->free) : Json();
  object["in_container"] =
      limits.container.ok() ? Json(!limits.container->empty()) : Json();
  object["container_mark"] = ValueJson(limits.container);
  object["wsl2"] = ValueJson(limits.wsl2);
  object["ptrace_scope"] = ValueJson(limits.ptrace_scope);
  object["process_reference"] = limits.process_reference.ok();
  object["socket_folder"] = ValueJson(limits.socket_folder);
  object["boot_id"] = limits.boot_id.ok();
  object["nvidia_control_node"] = ValueJson(limits.control_node);
  const auto& mps = limits.mps;
  object["mps_directory"] = mps.ok() ? Json(mps->directory) : Json();
  object["mps_socket"] = mps.ok() ? Json(mps->has_socket) : Json();
  object["mps_process"] =
      mps.ok() && mps->process != 0 ? Json(mps->process) : Json();
  object["mps_thread_percentage"] = ValueJson(limits.mps_threads);
  object["mps_memory_limit"] = ValueJson(limits.mps_memory);
  const auto& modules = limits.modules;
  object["open_kernel_modules"] =
      modules.ok() ? ValueJson(modules->open) : Json();
  object["rdma_modules"] = modules.ok() ? ValueJson(modules->loaded) : Json();
  object["cuda_visible_devices"] = ValueJson(limits.visible_devices);
  object["cuda_device_max_connections"] = ValueJson(limits.connections);
  return object;
}

}  // namespace

std::string AsJson(const Report& report) {
  Json object = Json::object();
  object["schema"] = "vmmshare-doctor/1";
  object["vmmshare_version"] = VMMSHARE_VERSION;
  object["driver"] = DriverJson(report.driver);
  object["nvml"] = NvmlJson(report.topology);
  Json devices = Json::array();
  for (std::size_t i = 0; i < report.devices.size(); ++i) {
    devices.push_back(DeviceJson(report.devices[i], report.topology.gpus[i]));
  }
  object["devices"] = std::move(devices);
  object["devices_error"] = ErrorJson(report.devices_status);
  Json pairs = Json::array();
  for (const PairReport& pair : report.pairs) pairs.push_back(PairJson(pair));
  object["pairs"] = std::move(pairs);
  object["imex"] = ImexJson(report.topology.imex);
  object["limits"] = LimitsJson(report.limits);
  object["notes"] = FindingsJson(report.notes);
  object["required"] =
      report.required.has_value() ? Json(FlagOf(*report.required)) : Json();
  object["exit_code"] = report.exit_code();
  return JsonText(object);
}

}  // namespace vmm::tool
