#include "vmm/tool/examine.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fabric/driver_fabric.h"
#include "platform/base/status_macros.h"
#include "vmm/memory/device.h"
#include "vmm/memory/internal/exporter.h"
#include "vmm/tool/ask_device.h"
#include "vmm/tool/device_notes.h"
#include "vmm/tool/driver_choice.h"
#include "vmm/tool/system_notes.h"

namespace vmm::tool {
namespace {

using fabric::Finding;
using platform::Driver;
using platform::DriverTable;

// CU_DEVICE_ATTRIBUTE_MPS_ENABLED, which older headers lack.
constexpr auto kMpsEnabled = static_cast<CUdevice_attribute>(133);

CUdevice_attribute AttributeOf(HandleKind kind) {
  switch (kind) {
    case HandleKind::kPosixFd:
      return CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED;
    case HandleKind::kWin32:
      return CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_WIN32_HANDLE_SUPPORTED;
    case HandleKind::kFabric:
    case HandleKind::kLegacyIpc:   // Not of kKinds.
    case HandleKind::kStreamPool:  // Nor this.
      break;
  }
  return CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED;
}

absl::StatusOr<std::uint64_t> AskMemory(const Device& device) {
  std::size_t bytes = 0;
  RETURN_IF_ERROR(device.driver().Error(
      device.driver()->cuDeviceTotalMem(&bytes, device.cuda_device()),
      absl::StrCat("cuDeviceTotalMem(device=", device.ordinal(), ")")));
  return bytes;
}

// Why memory cannot be shared within this host.
Finding WhyNotNative(const absl::Status& tried, const Exporter& exporter,
                     bool may_be_legacy) {
  if (const auto full = OutOfMemory(tried, "the kind")) return *full;
  const std::optional<CUresult> result = platform::ResultOf(tried);
  std::string remedy = result.has_value() ? exporter.advice(*result) : "";
  if (remedy.empty()) {
    remedy =
        "Is nvidia-smi content, and are library and kernel module of one "
        "version? docs/errors.md has the driver's results one by one.";
  }
  if (may_be_legacy) {
    absl::StrAppend(
        &remedy, absl::EndsWith(remedy, ".") ? "" : ".",
        " Programs that accept legacy CUDA IPC may share all the same "
        "(docs/any_memory.md): HandleKind::kLegacyIpc, in C "
        "VMMSHARE_KIND_LEGACY_IPC, in Python legacy=True.");
  }
  return {"driver-refused", "the driver refuses, whatever the attribute says",
          remedy};
}

// `context`: what came of the request for one, where the memory shall be touched.
std::vector<Finding> Reasons(const KindReport& report,
                             const absl::Status& context,
                             const fabric::Topology& topology,
                             const fabric::GpuTopology& gpu,
                             bool may_be_legacy) {
  if (!report.offered || report.tried.ok()) return {};
  // Nothing was tried, so that nothing can be said of the kind. A device without
  // memory for a context has a reason below that says more.
  if (!context.ok() &&
      platform::ResultOf(context) != CUDA_ERROR_OUT_OF_MEMORY) {
    return {NoContext()};
  }
  if (report.kind == HandleKind::kFabric) {
    return fabric::WhyNotFabric(topology, gpu,
                                {report.attribute, report.tried});
  }
  return {
      WhyNotNative(report.tried, **FindExporter(report.kind), may_be_legacy)};
}

// Its context, where the memory shall be touched; it ends with the report.
absl::StatusOr<std::optional<PrimaryContext>> ContextFor(const Device& device,
                                                         bool touch) {
  if (!touch) return std::nullopt;
  return PrimaryContext::Retain(device);
}

DeviceReport ExamineDevice(const Device& device, bool touch,
                           const fabric::Topology& topology,
                           const fabric::GpuTopology& gpu,
                           const LimitsReport& limits) {
  const absl::StatusOr<std::uint64_t> memory = AskMemory(device);
  const absl::StatusOr<std::optional<PrimaryContext>> context =
      ContextFor(device, touch);
  std::optional<absl::Status> legacy;
  if (touch && context.ok()) {
    legacy = TryKind(device, HandleKind::kLegacyIpc);
  }
  // It takes a context, and may not have been tried.
  const bool may_be_legacy =
      context.ok() && (!legacy.has_value() || legacy->ok());
  std::vector<KindReport> kinds;
  for (HandleKind kind : kKinds) {
    KindReport tried{.kind = kind,
                     .offered = FindExporter(kind).ok(),
                     .attribute = AskAttribute(device, AttributeOf(kind)),
                     .tried = context.status()};
    if (tried.offered && context.ok()) {
      tried.tried = TryKind(device, kind);
      tried.touched = touch;
    }
    tried.reasons =
        Reasons(tried, context.status(), topology, gpu, may_be_legacy);
    kinds.push_back(std::move(tried));
  }
  return {.device = device,
          .memory = memory,
          .mps_client = AskAttribute(device, kMpsEnabled),
          .compute_mode = AskNumber(device, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE),
          .kinds = std::move(kinds),
          .rdma = ExamineRdma(device, touch, context.status(), limits.modules),
          .legacy = std::move(legacy)};
}

absl::StatusOr<int> AskPair(const Device& a, const Device& b,
                            CUdevice_P2PAttribute attribute) {
  const Driver& driver = a.driver();
  RETURN_IF_ERROR(driver.Need<&DriverTable::cuDeviceGetP2PAttribute>());
  int value = 0;
  RETURN_IF_ERROR(
      driver.Error(driver->cuDeviceGetP2PAttribute(
                       &value, attribute, a.cuda_device(), b.cuda_device()),
                   absl::StrCat("cuDeviceGetP2PAttribute(", attribute, ", ",
                                a.ordinal(), ", ", b.ordinal(), ")")));
  return value;
}

absl::StatusOr<bool> AskAtomics(const Device& a, const Device& b) {
  ASSIGN_OR_RETURN(
      const int value,
      AskPair(a, b, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED));
  return value != 0;
}

absl::StatusOr<bool> AskNvLink(const fabric::Topology& topology, int a, int b) {
  const absl::StatusOr<fabric::Nvml::Gpu>& gpu_a = topology.gpus[a].gpu;
  const absl::StatusOr<fabric::Nvml::Gpu>& gpu_b = topology.gpus[b].gpu;
  if (!topology.nvml.ok()) return topology.nvml.status();
  if (!gpu_a.ok()) return gpu_a.status();
  if (!gpu_b.ok()) return gpu_b.status();
  return topology.nvml->JoinedByNvLink(*gpu_a, *gpu_b);
}

std::vector<PairReport> ExaminePairs(const std::vector<Device>& devices,
                                     const fabric::Topology& topology) {
  std::vector<PairReport> pairs;
  const int count = static_cast<int>(devices.size());
  for (int i = 0; i < count; ++i) {
    for (int j = i + 1; j < count; ++j) {
      const Device& a = devices[i];
      const Device& b = devices[j];
      pairs.push_back(
          {a.ordinal(), b.ordinal(), a.CanAccess(b), b.CanAccess(a),
           AskAtomics(a, b), AskAtomics(b, a),
           AskPair(a, b, CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK),
           AskNvLink(topology, i, j),
           fabric::InOneDomain(topology.gpus[i], topology.gpus[j])});
    }
  }
  return pairs;
}

}  // namespace

std::vector<int> Report::WithoutKind(HandleKind kind) const {
  std::vector<int> without;
  for (const DeviceReport& device : devices) {
    for (const KindReport& report : device.kinds) {
      if (report.kind == kind && !report.usable()) {
        without.push_back(device.device.ordinal());
      }
    }
  }
  return without;
}

absl::string_view Report::NoteAgainst(HandleKind kind) const {
  if (kind != HandleKind::kPosixFd && kind != HandleKind::kWin32) return "";
  if (!limits.socket_folder.ok()) return "socket-folder";
  if (limits.user_is_unknown) return "unknown-user";
  return limits.boot_id.ok() ? "" : "no-boot-id";
}

int Report::exit_code() const {
  if (!driver.ok() || !devices_status.ok()) return kExitNotUsable;
  if (!required.has_value()) return kExitGood;
  const bool works = !devices.empty() && WithoutKind(*required).empty() &&
                     NoteAgainst(*required).empty();
  return works ? kExitGood : kExitNotUsable;
}

Report Examine(const DoctorOptions& options) {
  DriverChoice choice = ChooseDriver(options);
  std::vector<Device> devices;
  absl::Status listed;
  if (choice.driver.ok()) {
    absl::StatusOr<std::vector<Device>> all = Device::All(*choice.driver);
    listed = all.status();
    if (all.ok()) devices = *std::move(all);
  }
  std::vector<fabric::Uuid> uuids;
  uuids.reserve(devices.size());
  for (const Device& device : devices) uuids.push_back(device.uuid().bytes);

  const auto by_driver = [&](std::size_t i) {
    return fabric::FabricOfDriver(devices[i].driver(),
                                  devices[i].cuda_device());
  };
  Report report{.driver = std::move(choice.driver),
                .devices_status = std::move(listed),
                .topology = fabric::ReadTopology(std::move(choice.nvml), uuids,
                                                 options.root, by_driver),
                .limits = ExamineLimits(options.root),
                .required = options.required};
  for (std::size_t i = 0; i < devices.size(); ++i) {
    report.devices.push_back(
        ExamineDevice(devices[i], options.touch, report.topology,
                      report.topology.gpus[i], report.limits));
  }
  report.pairs = ExaminePairs(devices, report.topology);
  report.notes = fabric::Notes(report.topology);
  AddNotesOnLimits(report, &report.notes);
  // The host-memory driver needs nothing of NVIDIA's.
  if (options.driver != "host") AddNoteOnDriver(report, &report.notes);
  AddNotesOnModes(report, &report.notes);
  AddNotesOnMps(report, &report.notes);
  return report;
}

}  // namespace vmm::tool
