// A handle tells where in its maker's process the memory is, as one of legacy
// IPC does: nothing is left behind when either process is killed, and the
// memory goes with the last one that holds it. What a handle permits is read
// from the memory's label, which nobody can change, not from the handle.
//
// Which result means what is documented for the IMEX channel only (cuda.h).
// The others are those that people report of real machines; each is named
// where it is used.
#include "platform/hostdriver/fabric_memory.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "platform/hostdriver/driver_version.h"
#include "platform/hostdriver/imex_os.h"
#include "platform/hostdriver/physical_memory.h"

namespace vmm::hostdriver {
namespace {

// What is in a CUmemFabricHandle. Comes back from anywhere: every field is
// checked.
struct WireHandle {
  std::uint64_t magic;
  std::uint64_t id;  // What the memory must be,
  std::uint64_t key;
  std::uint64_t process;  // where to open it,
  std::int64_t memory;    // and as what.
  std::array<std::uint8_t, 24> zero;
};
static_assert(sizeof(WireHandle) == sizeof(CUmemFabricHandle));
constexpr std::uint64_t kMagic = 0x3162616668736d76;  // "vmshfab1"

bool Contains(const std::vector<std::uint32_t>& channels,
              std::uint32_t channel) {
  return std::find(channels.begin(), channels.end(), channel) != channels.end();
}

const DeviceFabric& FabricOf(const State& state, int ordinal) {
  return state.config.fabric[state.visible[ordinal]];
}

bool IsInDomain(const DeviceFabric& device, const FabricPlace& place) {
  return device.joined() && device.cluster == place.cluster &&
         device.clique == place.clique;
}

// Whether `test` holds for any device that this process sees.
template <typename Test>
bool AnyDevice(const State& state, Test test) {
  for (int i = 0; i < static_cast<int>(state.visible.size()); ++i) {
    if (test(FabricOf(state, i))) return true;
  }
  return false;
}

// What `wire` leads to, if it still is there.
std::shared_ptr<Memory> Resolve(const State& state, const WireHandle& wire) {
  const std::optional<OpenedMemory> opened =
      OpenOf(wire.process, static_cast<OsMemory>(wire.memory), wire.id);
  if (!opened) return nullptr;
  std::shared_ptr<Memory> memory = AdoptOfAnyMachine(state, *opened);
  if (memory->label.kind != MemoryLabel::Kind::kFabric ||
      memory->label.fabric.key != wire.key ||
      InstanceOf(memory->label.instance) != InstanceOf(state.config.machine)) {
    return nullptr;
  }
  return memory;
}

}  // namespace

CUresult CheckFabric(const State& state, const CUmemLocation& location,
                     FabricPlace* place) {
  // Without IMEX, measured: whatever the location is.
  if (!state.config.fabric_root) return CUDA_ERROR_NOT_PERMITTED;
  // CU_DEVICE_ATTRIBUTE_HOST_NUMA_MULTINODE_IPC_SUPPORTED is 0.
  if (location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  const DeviceFabric& device = FabricOf(state, location.id);
  if (device.joining() && DriverVersion() >= kFabricNotReadySince) {
    return kFabricNotReady;
  }
  if (!device.joined()) return CUDA_ERROR_NOT_PERMITTED;
  const std::vector<std::uint32_t> channels =
      OpenableChannels(*state.config.fabric_root);
  if (channels.empty() || !ImexDaemonRuns(*state.config.fabric_root)) {
    return CUDA_ERROR_NOT_PERMITTED;
  }
  place->key = RandomNumber();
  if (place->key == 0) return CUDA_ERROR_OPERATING_SYSTEM;
  place->cluster = device.cluster;
  place->clique = device.clique;
  place->channel = channels.front();
  return CUDA_SUCCESS;
}

CUresult ExportFabric(const State& state, const Memory& memory,
                      void* shareable) {
  // What was there at creation may have gone since.
  if (!state.config.fabric_root ||
      !Contains(OpenableChannels(*state.config.fabric_root),
                memory.label.fabric.channel) ||
      !ImexDaemonRuns(*state.config.fabric_root)) {
    return CUDA_ERROR_NOT_PERMITTED;
  }
  const WireHandle wire{
      kMagic,          memory.label.id, memory.label.fabric.key,
      ProcessNumber(), memory.os,       {}};
  std::memcpy(shareable, &wire, sizeof(wire));
  return CUDA_SUCCESS;
}

CUresult ImportFabric(const State& state, const void* shareable,
                      std::shared_ptr<Memory>* memory) {
  // Measured, on a machine without a channel.
  if (!state.config.fabric_root) return CUDA_ERROR_NOT_SUPPORTED;
  if (shareable == nullptr) return CUDA_ERROR_INVALID_VALUE;
  // cuda.h: "If the current process cannot support the memory described".
  if (!AnyDevice(state, [](const DeviceFabric& d) { return d.joined(); })) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  const std::vector<std::uint32_t> channels =
      OpenableChannels(*state.config.fabric_root);
  if (channels.empty()) return CUDA_ERROR_NOT_PERMITTED;
  // kubernetes-sigs/dra-driver-nvidia-gpu#1417: while the daemon hung.
  if (!ImexDaemonRuns(*state.config.fabric_root)) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  WireHandle wire{};
  std::memcpy(&wire, shareable, sizeof(wire));
  // No report tells of bytes that are no handle, or of one that is stale.
  if (wire.magic != kMagic || wire.zero != WireHandle{}.zero) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  std::shared_ptr<Memory> found = Resolve(state, wire);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const MemoryLabel& label = found->label;
  // cuda.h: not "granted access to the same IMEX channel as the exporter".
  if (!Contains(channels, label.fabric.channel)) {
    return CUDA_ERROR_NOT_PERMITTED;
  }
  // meta-pytorch/torchcomms#3612, pytorch/pytorch#178989: between domains.
  if (!AnyDevice(state, [&label](const DeviceFabric& d) {
        return IsInDomain(d, label.fabric);
      })) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  // NVIDIA/nccl#1647, kubernetes-sigs/dra-driver-nvidia-gpu#294: within a node,
  // when the memory's device is hidden from this process.
  if (label.instance == state.config.machine && found->location.id < 0) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  *memory = std::move(found);
  return CUDA_SUCCESS;
}

bool ReachesOverFabric(const State& state, const Memory& memory, int ordinal) {
  return memory.label.instance == state.config.machine ||
         IsInDomain(FabricOf(state, ordinal), memory.label.fabric);
}

}  // namespace vmm::hostdriver
