// What the environment says of the machine to model.
#ifndef VMMSHARE_PLATFORM_HOSTDRIVER_CONFIG_H_
#define VMMSHARE_PLATFORM_HOSTDRIVER_CONFIG_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "platform/hostdriver/fabric_config.h"
#include "platform/hostdriver/memory_label.h"
#include "platform/hostdriver/memory_os.h"

namespace vmm::hostdriver {

inline constexpr int kMaxDevices = 64;

// What becomes of memory that is asked for with gpuDirectRDMACapable.
enum class RdmaModel {
  kWorks,      // As measured on an H100.
  kNone,       // The attribute says no, and cuMemCreate refuses.
  kRefused,    // The attribute says yes, and cuMemCreate refuses: GB10.
  kNoAccess,   // It is created, and access to it refused: WSL2.
  kForgotten,  // It is created without the flag, which nobody has seen.
};

struct Config {
  // The instance, and "@" and the node if it has several: what devices, memory
  // and budgets belong to.
  std::string machine = "default";
  int devices = 2;  // Physical ones.
  std::uint64_t memory = std::uint64_t{4} << 30;
  bool all_peers = true;
  std::set<std::pair<int, int>> peers;  // Physical numbers, both orders.
  std::optional<std::string> visible;   // CUDA_VISIBLE_DEVICES.
  std::vector<Uuid> uuids;              // By physical number.
  std::vector<DeviceFabric> fabric;     // The same.
  // Where IMEX is looked for; nothing: there is none.
  std::optional<std::string> fabric_root;
  // Whether it says that contexts are shared through MPS. Nothing else changes.
  bool mps = false;
  int compute_mode = 0;       // CUcomputemode.
  bool confidential = false;  // What NVML says.
  // The result that each call of an entry of NVML answers.
  std::map<std::string, int, std::less<>> nvml_failures;
  // A library that registers kernels.
  std::optional<std::string> kernels;
  RdmaModel rdma = RdmaModel::kWorks;
  // Whether there are descriptors for the memory at an address.
  bool dma_buf = true;
  // Hardware queues of a context: CUDA_DEVICE_MAX_CONNECTIONS.
  int connections = 8;
  // How long after its submission work in a stream begins, at the earliest.
  std::chrono::microseconds delay{0};
  // Bytes of which memory with fabric handles has a multiple.
  std::size_t fabric_granularity = kGranularity;

  bool ArePeers(int a, int b) const {
    return all_peers || peers.count({a, b}) != 0;
  }
};

// Reads the environment; Stop()s on a value that cannot be understood.
Config ReadConfig();

// The physical numbers of the devices that `visible` leaves, in its order: it
// lists numbers or prefixes of "GPU-..." UUIDs, and the first unknown one ends
// the list. nullopt when one device is named twice.
std::optional<std::vector<int>> VisibleDevices(const Config& config);

// "GPU-01234567-89ab-...": how nvidia-smi and CUDA_VISIBLE_DEVICES spell it.
std::string UuidText(const Uuid& uuid);

}  // namespace vmm::hostdriver

#endif  // VMMSHARE_PLATFORM_HOSTDRIVER_CONFIG_H_
