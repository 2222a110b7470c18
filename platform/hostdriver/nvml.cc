// A stand-in NVML: the few entry points that vmmshare asks, with answers from
// the environment (host_driver.h). Like NVIDIA's, it counts all devices of the
// machine and ignores CUDA_VISIBLE_DEVICES.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "platform/hostdriver/config.h"
#include "platform/hostdriver/host_driver.h"

namespace vmm::hostdriver {
namespace {

// NVML's results.
constexpr int kSuccess = 0;
constexpr int kUninitialized = 1;
constexpr int kInvalidArgument = 2;
constexpr int kNotFound = 6;
constexpr int kArgumentVersionMismatch = 25;
constexpr int kUnknown = 999;

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

// NVML's layout of nvmlConfComputeSystemState_t.
struct ConfComputeState {
  unsigned environment;
  unsigned feature;
  unsigned dev_tools;
};

const Config& Machine() {
  static auto* const config = new Config(ReadConfig());
  return *config;
}

// What the environment says `entry` fails with.
int Fails(std::string_view entry) {
  const auto found = Machine().nvml_failures.find(entry);
  return found == Machine().nvml_failures.end() ? kSuccess : found->second;
}

// The device that an opaque handle stands for; null for a foreign one.
const DeviceFabric* Find(const void* handle) {
  for (const DeviceFabric& gpu : Machine().fabric) {
    if (&gpu == handle) return &gpu;
  }
  return nullptr;
}

}  // namespace
}  // namespace vmm::hostdriver

using namespace vmm::hostdriver;

#pragma GCC visibility push(default)
extern "C" {

int nvmlInit_v2() {
  char why[1];  // Who loads the driver is told.
  if (vmmshareHostCheckSettings(why, sizeof(why)) != 0) return kUnknown;
  return Fails("nvmlInit_v2");
}

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

int nvmlSystemGetConfComputeState(void* state) {
  if (const int r = Fails("nvmlSystemGetConfComputeState"); r != kSuccess) {
    return r;
  }
  if (state == nullptr) return kInvalidArgument;
  const bool on = Machine().confidential;
  const ConfComputeState answer{on ? 2U : 0U, on ? 1U : 0U, 0};
  std::memcpy(state, &answer, sizeof(answer));
  return kSuccess;
}

int nvmlDeviceGetHandleByUUID(const char* uuid, const void** handle) {
  if (const int r = Fails("nvmlDeviceGetHandleByUUID"); r != kSuccess) return r;
  if (uuid == nullptr || handle == nullptr) return kInvalidArgument;
  const Config& config = Machine();
  for (int i = 0; i < config.devices; ++i) {
    if (UuidText(config.uuids[i]) == uuid) {
      *handle = &config.fabric[i];
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
  const DeviceFabric* gpu = Find(handle);
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
  const DeviceFabric* gpu = Find(handle);
  if (gpu == nullptr || info == nullptr) return kInvalidArgument;
  unsigned version = 0;
  std::memcpy(&version, info, sizeof(version));
  if (version != kFabricInfoVersion) return kArgumentVersionMismatch;
  FabricInfo answer{};
  answer.version = version;
  std::copy(gpu->cluster.begin(), gpu->cluster.end(), answer.cluster);
  answer.status = gpu->status;
  answer.clique = gpu->clique;
  answer.state = gpu->state;
  answer.health = gpu->health;
  std::memcpy(info, &answer, sizeof(answer));
  return kSuccess;
}

int nvmlDeviceGetP2PStatus(const void* one, const void* other, int index,
                           int* status) {
  if (const int r = Fails("nvmlDeviceGetP2PStatus"); r != kSuccess) return r;
  const DeviceFabric* a = Find(one);
  const DeviceFabric* b = Find(other);
  if (a == nullptr || b == nullptr || a == b || status == nullptr ||
      index < 0 || index > 4) {
    return kInvalidArgument;
  }
  constexpr int kOk = 0;
  constexpr int kNone = 5;
  const Config& config = Machine();
  const auto number = [&config](const DeviceFabric* gpu) {
    return static_cast<int>(gpu - config.fabric.data());
  };
  *status = config.ArePeers(number(a), number(b)) ? kOk : kNone;
  return kSuccess;
}

}  // extern "C"
#pragma GCC visibility pop
