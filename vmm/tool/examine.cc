#include "vmm/tool/examine.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fabric/driver_fabric.h"
#include "platform/base/status_macros.h"
#include "platform/ipc/channel.h"
#include "platform/os/imex.h"
#include "platform/os/machine.h"
#include "platform/os/process.h"
#include "vmm/memory/device.h"
#include "vmm/memory/internal/exporter.h"
#include "vmm/tool/ask_device.h"
#include "vmm/tool/device_notes.h"
#include "vmm/tool/driver_choice.h"

namespace vmm::tool {
namespace {

using fabric::Finding;
using platform::Driver;
using platform::DriverTable;

constexpr HandleKind kKinds[] = {HandleKind::kPosixFd, HandleKind::kWin32,
                                 HandleKind::kFabric};

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
  if (CUresult r =
          device.driver()->cuDeviceTotalMem(&bytes, device.cuda_device());
      r != CUDA_SUCCESS) {
    return device.driver().Error(
        r, absl::StrCat("cuDeviceTotalMem(device=", device.ordinal(), ")"));
  }
  return bytes;
}

// Why memory cannot be shared within this host.
Finding WhyNotNative(const absl::Status& tried, const Exporter& exporter,
                     bool may_be_legacy) {
  const std::optional<CUresult> result = platform::ResultOf(tried);
  if (result == CUDA_ERROR_OUT_OF_MEMORY) {
    return {"out-of-memory",
            "the device has no memory left to try with; this says nothing of "
            "the kind",
            "Free some: nvidia-smi shows who holds it with a context, "
            "`vmmshare keep --list` what a keeper holds, which has none."};
  }
  std::string remedy = result.has_value() ? exporter.advice(*result) : "";
  if (remedy.empty()) {
    remedy =
        "Is nvidia-smi content, and are library and kernel module of one "
        "version? docs/errors.md has the driver's results one by one.";
  }
  if (!may_be_legacy) {
    return {"driver-refused", "the driver refuses, whatever the attribute says",
            remedy};
  }
  absl::StrAppend(
      &remedy, absl::EndsWith(remedy, ".") ? "" : ".",
      " Programs that accept legacy CUDA IPC may share all the same "
      "(docs/any_memory.md): HandleKind::kLegacyIpc, in C "
      "VMMSHARE_KIND_LEGACY_IPC, in Python legacy=True.");
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
  if (!touch) return std::optional<PrimaryContext>();
  absl::StatusOr<PrimaryContext> context = PrimaryContext::Retain(device);
  if (!context.ok()) return context.status();
  return std::optional<PrimaryContext>(*std::move(context));
}

DeviceReport ExamineDevice(const Device& device, bool touch,
                           const fabric::Topology& topology,
                           const fabric::GpuTopology& gpu,
                           const LimitsReport& limits) {
  DeviceReport report{device, AskMemory(device), false, 0, {}, {}, {}};
  const absl::StatusOr<std::optional<PrimaryContext>> context =
      ContextFor(device, touch);
  if (touch && context.ok()) {
    report.legacy = TryKind(device, HandleKind::kLegacyIpc);
  }
  // It takes a context, and may not have been tried.
  const bool may_be_legacy =
      context.ok() && (!report.legacy.has_value() || report.legacy->ok());
  for (HandleKind kind : kKinds) {
    KindReport tried{kind,
                     FindExporter(kind).ok(),
                     AskAttribute(device, AttributeOf(kind)),
                     context.status(),
                     false,
                     {}};
    if (tried.offered && context.ok()) {
      tried.tried = TryKind(device, kind);
      tried.touched = touch;
    }
    tried.reasons =
        Reasons(tried, context.status(), topology, gpu, may_be_legacy);
    report.kinds.push_back(std::move(tried));
  }
  report.mps_client = AskAttribute(device, kMpsEnabled);
  report.compute_mode = AskNumber(device, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE);
  report.rdma = ExamineRdma(device, touch, context.status(), limits.modules);
  return report;
}

absl::StatusOr<int> AskPair(const Device& a, const Device& b,
                            CUdevice_P2PAttribute attribute) {
  const Driver& driver = a.driver();
  if (absl::Status s = driver.Need<&DriverTable::cuDeviceGetP2PAttribute>();
      !s.ok()) {
    return s;
  }
  int value = 0;
  if (CUresult r = driver->cuDeviceGetP2PAttribute(
          &value, attribute, a.cuda_device(), b.cuda_device());
      r != CUDA_SUCCESS) {
    return driver.Error(
        r, absl::StrCat("cuDeviceGetP2PAttribute(", attribute, ", ",
                        a.ordinal(), ", ", b.ordinal(), ")"));
  }
  return value;
}

absl::StatusOr<bool> AskAtomics(const Device& a, const Device& b) {
  absl::StatusOr<int> value =
      AskPair(a, b, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED);
  if (!value.ok()) return value.status();
  return *value != 0;
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

std::optional<std::string> Variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr) return std::nullopt;
  return value;
}

// Where this process would make its sockets, once one could be made there: it
// is let go of at once.
absl::StatusOr<std::string> ExamineSocketFolder() {
  ASSIGN_OR_RETURN(std::string folder, platform::DefaultChannelDirectory());
  RETURN_IF_ERROR(platform::Listener::Bind({.directory = folder}, {}).status());
  return folder;
}

LimitsReport ExamineLimits(const std::string& root) {
  LimitsReport limits{
      platform::GetDescriptorLimits(),
      platform::SharedMemorySpace(root),
      platform::ContainerMark(root),
      platform::IsWsl2(root),
      platform::PtraceScope(root),
      platform::HasNvidiaControlNode(root),
      platform::LookForMps(root),
      platform::LookForNvidiaModules(root),
      platform::Process::Open(platform::CurrentProcessId()).status(),
      ExamineSocketFolder(),
      platform::ThisMachine().status(),
      Variable("CUDA_VISIBLE_DEVICES"),
      Variable("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"),
      Variable("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"),
      platform::CurrentUserIsUnknown()};
  const absl::StatusOr<bool> gpu_node = platform::HasWsl2GpuNode(root);
  limits.wsl2_has_no_gpu =
      limits.wsl2.ok() && *limits.wsl2 && gpu_node.ok() && !*gpu_node;
  return limits;
}

// For `ulimit`, of any shell.
std::string Limit(std::uint64_t limit) {
  return limit == UINT64_MAX ? "unlimited" : absl::StrCat(limit);
}

// Why there is no driver, where the system was asked for one.
void AddNoteOnDriver(const Report& report, std::vector<Finding>* notes) {
  const absl::StatusOr<bool>& node = report.limits.control_node;
  if (report.driver.ok() || !node.ok()) return;
  // The kernel's part is Windows's there, and no module of Linux.
  if (report.limits.wsl2.ok() && *report.limits.wsl2) {
    if (!report.limits.wsl2_has_no_gpu) return;
    notes->push_back({"wsl2-no-gpu",
                      "/dev/dxg is not here: WSL2 has no GPU, or it was not "
                      "passed in",
                      "Install or update NVIDIA's driver on Windows, and run "
                      "`wsl --update` there; install none in WSL2. Start a "
                      "container with --gpus all."});
    return;
  }
  if (!*node) {
    notes->push_back({"module-missing",
                      "/dev/nvidiactl is not here: the kernel's part of the "
                      "driver is not loaded, or not passed in",
                      "Install the NVIDIA driver and load it (modprobe "
                      "nvidia); start a container with --gpus all."});
    return;
  }
  // A library that answered was found; what it answered says the cause.
  if (platform::ResultOf(report.driver.status()).has_value()) return;
  notes->push_back(
      {"library-missing",
       "/dev/nvidiactl is here, so the kernel's part of the driver is loaded",
       "If the library is missing: in a container, "
       "NVIDIA_DRIVER_CAPABILITIES=compute,utility; else install the driver "
       "package of the same version."});
}

void AddNotesOnLimits(const Report& report, std::vector<Finding>* notes) {
  const LimitsReport& limits = report.limits;
  // Common defaults are 1,024 soft and far more hard.
  if (limits.descriptors.ok() && limits.descriptors->soft <= 1024) {
    notes->push_back(
        {"few-descriptors",
         absl::StrCat("a process may have ", limits.descriptors->soft,
                      " descriptors open, and each shared chunk takes one in "
                      "each process"),
         limits.descriptors->hard > limits.descriptors->soft
             ? absl::StrCat("Raise it as far as this process may: `ulimit -n ",
                            Limit(limits.descriptors->hard), "`.")
             : std::string(
                   "Raise it as root: LimitNOFILE in a systemd unit, --ulimit "
                   "nofile of a container.")});
  }
  if (limits.wsl2.ok() && *limits.wsl2) {
    notes->push_back(
        {"wsl2",
         "this is WSL2, which refuses to share chunks of 4 GiB and more",
         "Set max_chunk_size of the allocation to less, such as 2 GiB."});
  }
  if (!limits.process_reference.ok()) {
    notes->push_back(
        {"no-process-reference",
         absl::StrCat("on Linux before 6.5 peers cannot be watched: ",
                      limits.process_reference.message()),
         "Use Linux 5.3 or newer, and allow pidfd_open in the container's "
         "seccomp profile."});
  }
  if (!limits.socket_folder.ok()) {
    notes->push_back(
        {"socket-folder",
         absl::StrCat("no socket can be made where peers look for it: ",
                      limits.socket_folder.status().message()),
         "Set NVIDIA_DRA_LOCAL_IPC_DIR to a folder that both sides have in "
         "common (docs/containers.md). Who only opens may have it "
         "read-only."});
  }
  if (limits.user_is_unknown) {
    const std::string user = platform::CurrentUser().text();
    notes->push_back(
        {"unknown-user",
         absl::StrCat("this process is user ", user,
                      ", which stands for every user that this user namespace "
                      "does not map: no peer in it accepts this process"),
         absl::StrCat("Run the container as another user than ", user, ".")});
  }
  if (!limits.boot_id.ok()) {
    notes->push_back({"no-boot-id",
                      absl::StrCat("peers cannot tell that they are on one "
                                   "machine: ",
                                   limits.boot_id.message()),
                      "Mount /proc, and take /proc/sys/kernel/random/boot_id "
                      "out of the container's masked paths."});
  }
  if (report.driver.ok() && report.driver->is_host_memory()) {
    notes->push_back(
        {"host-memory",
         "this is the host-memory driver: no GPU was tried, and fabric handles "
         "it refuses unless VMMSHARE_HOST_FABRIC_ROOT gives it a fabric",
         "For the GPUs of this machine: --driver=system."});
  }
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

int Report::exit_code() const {
  if (!driver.ok() || !devices_status.ok()) return kExitNotUsable;
  if (!required.has_value()) return kExitGood;
  return devices.empty() || !WithoutKind(*required).empty() ? kExitNotUsable
                                                            : kExitGood;
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
  Report report{std::move(choice.driver),
                {},
                std::move(listed),
                {},
                fabric::ReadTopology(std::move(choice.nvml), uuids,
                                     options.root, by_driver),
                ExamineLimits(options.root),
                {},
                options.required};
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
