// A stand-in NVML: the few entry points that vmmshare asks, with answers from
// the environment (host_driver.h). Like NVIDIA's, it counts all devices of the
// machine and ignores CUDA_VISIBLE_DEVICES.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "platform/hostdriver/config.h"
#include "platform/hostdriver/environment.h"

namespace vmm::hostdriver {
namespace {

// NVML's results.
constexpr int kSuccess = 0;
constexpr int kUninitialized = 1;
constexpr int kInvalidArgument = 2;
constexpr int kNotFound = 6;
constexpr int kArgumentVersionMismatch = 25;

// NVML's layout of nvmlGpuFabricInfo_v2_t, and the version that names it.
struct FabricInfo {
  unsigned version;
  unsigned char cluster[16];
  int status;
  unsigned clique;
  unsigned char state;
  unsigned health;
};
constexpr unsigned kFabricInfoVersion = sizeof(FabricInfo) | 2U << 24;

struct Gpu {
  int number = 0;
  FabricInfo fabric{};
  bool mig = false;
};

struct Machine {
  Config config;
  std::vector<Gpu> gpus;
  std::map<std::string, int, std::less<>> failures;
};

// The entry for `device` of a list with one for each; the last one stands for
// the rest.
std::optional<std::string> Item(const char* name, int device) {
  const char* value = Value(name);
  if (value == nullptr) return std::nullopt;
  const std::vector<std::string_view> items = Split(value, ',');
  const auto last = static_cast<int>(items.size()) - 1;
  return std::string(items[std::min(device, last)]);
}

unsigned NumberItem(const char* name, int device) {
  const std::optional<std::string> item = Item(name, device);
  if (!item) return 0;
  const auto number = ParseNumber<unsigned>(*item);
  if (!number) BadValue(name, *item, "a number for each device: 0,1");
  return *number;
}

unsigned char StateItem(int device) {
  constexpr const char* kStates[] = {"not-supported", "not-started",
                                     "in-progress", "completed"};
  constexpr char kName[] = "VMMSHARE_HOST_FABRIC_STATE";
  // As measured on H100 and H200.
  const std::string item = Item(kName, device).value_or("completed");
  for (std::size_t i = 0; i < std::size(kStates); ++i) {
    if (item == kStates[i]) return static_cast<unsigned char>(i);
  }
  BadValue(kName, item, "not-supported, not-started, in-progress or completed");
}

void ReadCluster(int device, unsigned char (&cluster)[16]) {
  constexpr char kName[] = "VMMSHARE_HOST_FABRIC_CLUSTER";
  const std::optional<std::string> item = Item(kName, device);
  if (!item) return;
  std::string hex = *item;
  hex.erase(std::remove(hex.begin(), hex.end(), '-'), hex.end());
  bool good = hex.size() == 32;
  for (std::size_t i = 0; good && i < 16; ++i) {
    const char* digits = hex.data() + 2 * i;
    const auto [rest, error] =
        std::from_chars(digits, digits + 2, cluster[i], 16);
    good = error == std::errc() && rest == digits + 2;
  }
  if (!good) BadValue(kName, *item, "a UUID, 8-4-4-4-12 hexadecimal digits");
}

Machine ReadMachine() {
  Machine machine;
  machine.config = ReadConfig();
  for (int i = 0; i < machine.config.devices; ++i) {
    Gpu gpu;
    gpu.number = i;
    gpu.fabric.state = StateItem(i);
    gpu.fabric.status =
        static_cast<int>(NumberItem("VMMSHARE_HOST_FABRIC_STATUS", i));
    gpu.fabric.clique = NumberItem("VMMSHARE_HOST_FABRIC_CLIQUE", i);
    gpu.fabric.health = NumberItem("VMMSHARE_HOST_FABRIC_HEALTH", i);
    ReadCluster(i, gpu.fabric.cluster);
    gpu.mig = NumberItem("VMMSHARE_HOST_MIG", i) != 0;
    machine.gpus.push_back(gpu);
  }
  constexpr char kFail[] = "VMMSHARE_HOST_NVML_FAIL";
  if (const char* value = Value(kFail)) {
    for (const std::string_view rule : Split(value, ',')) {
      const std::size_t colon = rule.find(':');
      const auto result = colon == std::string_view::npos
                              ? std::nullopt
                              : ParseNumber<int>(rule.substr(colon + 1));
      if (!result) {
        BadValue(kFail, value, "entry points and results: nvmlInit_v2:9,...");
      }
      machine.failures.emplace(rule.substr(0, colon), *result);
    }
  }
  return machine;
}

Machine& GetMachine() {
  static auto* const machine = new Machine(ReadMachine());
  return *machine;
}

// What the environment says `entry` fails with.
int Fails(std::string_view entry) {
  const Machine& machine = GetMachine();
  const auto found = machine.failures.find(entry);
  return found == machine.failures.end() ? kSuccess : found->second;
}

// The device that an opaque handle stands for; null for a foreign one.
const Gpu* Find(const void* handle) {
  for (const Gpu& gpu : GetMachine().gpus) {
    if (&gpu == handle) return &gpu;
  }
  return nullptr;
}

}  // namespace
}  // namespace vmm::hostdriver

using namespace vmm::hostdriver;

#pragma GCC visibility push(default)
extern "C" {

int nvmlInit_v2() { return Fails("nvmlInit_v2"); }

int nvmlShutdown() { return Fails("nvmlShutdown"); }

const char* nvmlErrorString(int result) {
  switch (result) {
    case 0:
      return "Success";
    case kUninitialized:
      return "Uninitialized";
    case kInvalidArgument:
      return "Invalid Argument";
    case 3:
      return "Not Supported";
    case 4:
      return "Insufficient Permissions";
    case kNotFound:
      return "Not Found";
    case 9:
      return "Driver Not Loaded";
    case 15:
      return "GPU is lost";
    case kArgumentVersionMismatch:
      return "Argument version mismatch";
    default:
      return "Unknown Error";
  }
}

int nvmlSystemGetDriverVersion(char* version, unsigned length) {
  if (const int r = Fails("nvmlSystemGetDriverVersion"); r != kSuccess) {
    return r;
  }
  if (version == nullptr) return kInvalidArgument;
  std::snprintf(version, length, "host-memory");
  return kSuccess;
}

int nvmlDeviceGetHandleByUUID(const char* uuid, const void** handle) {
  if (const int r = Fails("nvmlDeviceGetHandleByUUID"); r != kSuccess) return r;
  if (uuid == nullptr || handle == nullptr) return kInvalidArgument;
  const Machine& machine = GetMachine();
  for (const Gpu& gpu : machine.gpus) {
    if (UuidText(machine.config.uuids[gpu.number]) == uuid) {
      *handle = &gpu;
      return kSuccess;
    }
  }
  return kNotFound;
}

int nvmlDeviceIsMigDeviceHandle(const void* handle, unsigned* is) {
  if (const int r = Fails("nvmlDeviceIsMigDeviceHandle"); r != kSuccess) {
    return r;
  }
  if (Find(handle) == nullptr || is == nullptr) return kInvalidArgument;
  *is = 0;
  return kSuccess;
}

int nvmlDeviceGetMigMode(const void* handle, unsigned* current,
                         unsigned* pending) {
  if (const int r = Fails("nvmlDeviceGetMigMode"); r != kSuccess) return r;
  const Gpu* gpu = Find(handle);
  if (gpu == nullptr || current == nullptr || pending == nullptr) {
    return kInvalidArgument;
  }
  *current = *pending = gpu->mig ? 1 : 0;
  return kSuccess;
}

int nvmlDeviceGetGpuFabricInfoV(const void* handle, void* info) {
  if (const int r = Fails("nvmlDeviceGetGpuFabricInfoV"); r != kSuccess) {
    return r;
  }
  const Gpu* gpu = Find(handle);
  if (gpu == nullptr || info == nullptr) return kInvalidArgument;
  unsigned version = 0;
  std::memcpy(&version, info, sizeof(version));
  if (version != kFabricInfoVersion) return kArgumentVersionMismatch;
  FabricInfo answer = gpu->fabric;
  answer.version = version;
  std::memcpy(info, &answer, sizeof(answer));
  return kSuccess;
}

int nvmlDeviceGetP2PStatus(const void* one, const void* other, int index,
                           int* status) {
  if (const int r = Fails("nvmlDeviceGetP2PStatus"); r != kSuccess) return r;
  const Gpu* a = Find(one);
  const Gpu* b = Find(other);
  if (a == nullptr || b == nullptr || a == b || status == nullptr ||
      index < 0 || index > 4) {
    return kInvalidArgument;
  }
  constexpr int kOk = 0;
  constexpr int kNone = 5;
  *status = GetMachine().config.ArePeers(a->number, b->number) ? kOk : kNone;
  return kSuccess;
}

}  // extern "C"
#pragma GCC visibility pop
