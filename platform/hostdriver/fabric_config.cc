#include "platform/hostdriver/fabric_config.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "platform/hostdriver/environment.h"

namespace vmm::hostdriver {
namespace {

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
  const std::optional<std::string> item = Item(kName, device);
  if (!item) return DeviceFabric::kCompleted;
  for (std::size_t i = 0; i < std::size(kStates); ++i) {
    if (*item == kStates[i]) return static_cast<unsigned char>(i);
  }
  BadValue(kName, *item,
           "not-supported, not-started, in-progress or completed");
}

Uuid ClusterItem(int device) {
  constexpr char kName[] = "VMMSHARE_HOST_FABRIC_CLUSTER";
  Uuid cluster{};
  const std::optional<std::string> item = Item(kName, device);
  if (!item) return cluster;
  std::string hex = *item;
  hex.erase(std::remove(hex.begin(), hex.end(), '-'), hex.end());
  bool good = hex.size() == 32;
  for (std::size_t i = 0; good && i < cluster.size(); ++i) {
    const char* digits = hex.data() + 2 * i;
    const auto [rest, error] =
        std::from_chars(digits, digits + 2, cluster[i], 16);
    good = error == std::errc() && rest == digits + 2;
  }
  if (!good) BadValue(kName, *item, "a UUID, 8-4-4-4-12 hexadecimal digits");
  return cluster;
}

}  // namespace

DeviceFabric ReadDeviceFabric(int device) {
  DeviceFabric fabric;
  fabric.state = StateItem(device);
  fabric.status =
      static_cast<int>(NumberItem("VMMSHARE_HOST_FABRIC_STATUS", device));
  fabric.cluster = ClusterItem(device);
  fabric.clique = NumberItem("VMMSHARE_HOST_FABRIC_CLIQUE", device);
  fabric.health = NumberItem("VMMSHARE_HOST_FABRIC_HEALTH", device);
  fabric.mig = NumberItem("VMMSHARE_HOST_MIG", device) != 0;
  return fabric;
}

}  // namespace vmm::hostdriver
