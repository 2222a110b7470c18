#include "platform/hostdriver/config.h"

#include <algorithm>
#include <cstdlib>
#include <map>

#include "platform/hostdriver/cuda_api.h"
#include "platform/hostdriver/environment.h"
#include "platform/hostdriver/imex_os.h"

namespace vmm::hostdriver {
namespace {

std::optional<std::uint64_t> ParseBytes(std::string_view text) {
  int shift = 0;
  switch (text.empty() ? '\0' : text.back()) {
    case 'K':
      shift = 10;
      break;
    case 'M':
      shift = 20;
      break;
    case 'G':
      shift = 30;
      break;
  }
  if (shift != 0) text.remove_suffix(1);
  const auto number = ParseNumber<std::uint64_t>(text);
  if (!number || *number > (UINT64_MAX >> 1 >> shift)) return std::nullopt;
  return *number << shift;
}

std::uint64_t Mix(std::uint64_t x) {  // splitmix64's finaliser.
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

Uuid MakeUuid(const std::string& machine, int device) {
  // The same for all users, as a GPU's is, and in containers of other users.
  const std::string seed =
      "vmmshare host device " + machine + "/" + std::to_string(device);
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a.
  for (const char c : seed) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  Uuid uuid{};
  for (int half = 0; half < 2; ++half) {
    hash = Mix(hash);
    for (int i = 0; i < 8; ++i) {
      uuid[half * 8 + i] = static_cast<std::uint8_t>(hash >> (8 * i));
    }
  }
  uuid[6] = (uuid[6] & 0x0f) | 0x80;  // RFC 9562: version 8, made our own way.
  uuid[8] = (uuid[8] & 0x3f) | 0x80;
  return uuid;
}

// The number from 0 to `most` that `name` has; `otherwise` where it is unset.
int ReadNumber(const char* name, int most, int otherwise,
               const char* expected) {
  const char* const value = Value(name);
  if (value == nullptr) return otherwise;
  const auto number = ParseNumber<int>(value);
  if (!number || *number < 0 || *number > most) BadValue(name, value, expected);
  return *number;
}

// The variable is CUDA's: no program ends for what else it may have.
int ReadConnections(int otherwise) {
  const char* const value = Value("CUDA_DEVICE_MAX_CONNECTIONS");
  const auto number = value == nullptr ? std::nullopt : ParseNumber<int>(value);
  return number && *number >= 1 && *number <= 32 ? *number : otherwise;
}

bool ReadFlag(const char* name, bool otherwise) {
  return ReadNumber(name, 1, otherwise ? 1 : 0, "0 or 1") == 1;
}

// What the word that `name` has stands for; `otherwise` where it is unset.
template <typename T>
T ReadWord(const char* name, const std::map<std::string_view, T>& words,
           T otherwise, const char* expected) {
  const char* const value = Value(name);
  if (value == nullptr) return otherwise;
  const auto word = words.find(value);
  if (word == words.end()) BadValue(name, value, expected);
  return word->second;
}

// The name of an instance, or of a node, that `name` has; null where it is unset.
const char* ReadName(const char* name) {
  const char* const value = Value(name);
  if (value != nullptr && !IsInstanceName(value)) {
    BadValue(name, value, "1 to 32 letters, digits, '-' and '_'");
  }
  return value;
}

void ReadPeers(Config* config) {
  const char* value = Value("VMMSHARE_HOST_PEERS");
  if (value == nullptr || std::string_view(value) == "all") return;
  config->all_peers = false;
  if (std::string_view(value) == "none") return;
  for (const std::string_view pair : Split(value, ',')) {
    const std::vector<std::string_view> numbers = Split(pair, '-');
    const auto a = ParseNumber<int>(numbers.front());
    const auto b = ParseNumber<int>(numbers.back());
    if (numbers.size() != 2 || !a || !b || *a == *b) {
      BadValue("VMMSHARE_HOST_PEERS", value,
               "all, none, or pairs of device numbers such as 0-1,1-2");
    }
    config->peers.insert({*a, *b});
    config->peers.insert({*b, *a});
  }
}

// Adds the node to the machine's name. Without a fabric there is one node, and
// containers of it with networks of their own can share descriptors.
void ReadNode(Config* config) {
  std::string node;
  if (const char* value = ReadName("VMMSHARE_HOST_NODE")) {
    node = value;
  } else if (config->fabric_root) {
    node = NetworkNamespace();
  }
  if (!node.empty()) config->machine += "@" + node;
}

void ReadNvmlFailures(Config* config) {
  constexpr char kName[] = "VMMSHARE_HOST_NVML_FAIL";
  const char* const value = Value(kName);
  if (value == nullptr) return;
  for (const std::string_view rule : Split(value, ',')) {
    const std::vector<std::string_view> parts = Split(rule, ':');
    const auto result = ParseNumber<int>(parts.back());
    if (parts.size() != 2 || !result) {
      BadValue(kName, value, "entry points and results: nvmlInit_v2:9,...");
    }
    config->nvml_failures.emplace(parts.front(), *result);
  }
}

void ReadFabric(Config* config) {
  if (const char* value = Value("VMMSHARE_HOST_FABRIC_ROOT")) {
    config->fabric_root = value;
  }
  if (const char* value = Value("VMMSHARE_HOST_FABRIC_GRANULARITY")) {
    const auto bytes = ParseBytes(value);
    if (!bytes || *bytes == 0 || *bytes % kGranularity != 0) {
      BadValue("VMMSHARE_HOST_FABRIC_GRANULARITY", value,
               "a multiple of 2 MiB, such as 512M");
    }
    config->fabric_granularity = *bytes;
  }
}

}  // namespace

std::string UuidText(const Uuid& uuid) {
  const std::string hex = UuidHex(uuid);
  return "GPU-" + hex.substr(0, 8) + "-" + hex.substr(8, 4) + "-" +
         hex.substr(12, 4) + "-" + hex.substr(16, 4) + "-" + hex.substr(20);
}

Config ReadConfig() {
  Config config;
  if (const char* value = ReadName("VMMSHARE_HOST_INSTANCE")) {
    config.machine = value;
  }
  config.devices = ReadNumber("VMMSHARE_HOST_DEVICES", kMaxDevices,
                              config.devices, "a number from 0 to 64");
  if (const char* value = Value("VMMSHARE_HOST_MEMORY")) {
    const auto bytes = ParseBytes(value);
    if (!bytes) {
      BadValue("VMMSHARE_HOST_MEMORY", value, "bytes, or such as 512M or 4G");
    }
    config.memory = *bytes;
  }
  config.delay = std::chrono::microseconds(ReadNumber(
      "VMMSHARE_HOST_DELAY", 1'000'000, 0, "microseconds, from 0 to 1000000"));
  config.mps = ReadFlag("VMMSHARE_HOST_MPS", false);
  config.connections = ReadConnections(config.mps ? 2 : 8);
  config.compute_mode = ReadWord<int>(
      "VMMSHARE_HOST_COMPUTE_MODE",
      {{"default", CU_COMPUTEMODE_DEFAULT},
       {"exclusive-process", CU_COMPUTEMODE_EXCLUSIVE_PROCESS},
       {"prohibited", CU_COMPUTEMODE_PROHIBITED}},
      CU_COMPUTEMODE_DEFAULT, "default, exclusive-process or prohibited");
  config.confidential = ReadFlag("VMMSHARE_HOST_CONFIDENTIAL", false);
  if (config.confidential) config.all_peers = false;
  ReadNvmlFailures(&config);
  if (const char* value = Value("VMMSHARE_HOST_KERNELS")) {
    config.kernels = value;
  }
  config.rdma = ReadWord<RdmaModel>(
      "VMMSHARE_HOST_RDMA",
      {{"works", RdmaModel::kWorks},
       {"none", RdmaModel::kNone},
       {"refused", RdmaModel::kRefused},
       {"no-access", RdmaModel::kNoAccess},
       {"forgotten", RdmaModel::kForgotten}},
      RdmaModel::kWorks, "works, none, refused, no-access or forgotten");
  config.dma_buf =
      ReadFlag("VMMSHARE_HOST_DMA_BUF", true) &&
      kNativeHandleType == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  ReadPeers(&config);
  ReadFabric(&config);
  ReadNode(&config);
  if (const char* value = std::getenv("CUDA_VISIBLE_DEVICES")) {
    config.visible = value;
  }
  for (int i = 0; i < config.devices; ++i) {
    config.uuids.push_back(MakeUuid(config.machine, i));
    config.fabric.push_back(ReadDeviceFabric(i));
  }
  return config;
}

std::optional<std::vector<int>> VisibleDevices(const Config& config) {
  std::vector<int> devices;
  if (!config.visible) {
    for (int i = 0; i < config.devices; ++i) devices.push_back(i);
    return devices;
  }
  for (const std::string_view item : Split(*config.visible, ',')) {
    int device = -1;
    if (item.substr(0, 4) == "GPU-") {
      for (int i = 0; i < config.devices; ++i) {
        if (UuidText(config.uuids[i]).compare(0, item.size(), item) != 0) {
          continue;
        }
        device = device == -1 ? i : -2;  // -2: the prefix fits several.
      }
    } else if (const auto number = ParseNumber<int>(item)) {
      if (*number >= 0 && *number < config.devices) device = *number;
    }
    if (device < 0) break;
    if (std::find(devices.begin(), devices.end(), device) != devices.end()) {
      return std::nullopt;
    }
    devices.push_back(device);
  }
  return devices;
}

}  // namespace vmm::hostdriver
