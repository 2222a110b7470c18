#include "platform/hostdriver/driver_version.h"

#include <string_view>
#include <vector>

#include "platform/hostdriver/environment.h"

namespace vmm::hostdriver {
namespace {

constexpr char kVersion[] = "VMMSHARE_HOST_VERSION";
constexpr char kLocation[] = "VMMSHARE_HOST_LOCATION";

constexpr int kOldest = 12000;
constexpr int kNewest = 13050;

int ReadVersion() {
  const char* const value = Value(kVersion);
  if (value == nullptr) return 13000;
  const std::vector<std::string_view> parts = Split(value, '.');
  const auto major = ParseNumber<int>(parts.front());
  const auto minor = ParseNumber<int>(parts.back());
  if (parts.size() == 2 && major && minor && *major >= 12 && *major <= 13 &&
      *minor >= 0 && *minor <= 9) {
    const int version = *major * 1000 + *minor * 10;
    if (version >= kOldest && version <= kNewest) return version;
  }
  BadValue(kVersion, value, "a version from 12.0 to 13.5");
}

// 0: as the version has it.
int ReadLocation() {
  const char* const value = Value(kLocation);
  if (value == nullptr) return 0;
  const auto type = ParseNumber<int>(value);
  if (type && *type > 0) return *type;
  BadValue(kLocation, value, "the number of a CUmemLocationType");
}

}  // namespace

int DriverVersion() {
  static const int version = ReadVersion();
  return version;
}

CUmemLocation ToldLocation(CUmemLocation location) {
  static const int forced = ReadLocation();
  if (location.type != CU_MEM_LOCATION_TYPE_DEVICE) return location;
  if (forced != 0) {
    location.type = static_cast<CUmemLocationType>(forced);
    // In place of the device's ordinal: two bytes, the device and its domain 1.
    if (location.type == kLocalityDomain && location.id >= 0) {
      location.id |= 1 << 8;
    }
  } else if (location.id < 0 && DriverVersion() >= kInvisibleSince) {
    location.type = kInvisible;
  }
  return location;
}

}  // namespace vmm::hostdriver
