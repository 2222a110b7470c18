#include "vmm/device.h"

#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "vmm/exporter.h"

namespace vmm {
namespace {

using platform::Driver;
using platform::DriverTable;

// A MIG instance has a UUID of its own, which only the second version of the
// call answers; the first answers the UUID of the whole GPU.
absl::StatusOr<DeviceUuid> ReadUuid(const Driver& driver, CUdevice device) {
  CUuuid raw{};
  const bool knows_mig = driver.Need<&DriverTable::device_get_mig_uuid>().ok();
  const CUresult result = knows_mig ? driver->device_get_mig_uuid(&raw, device)
                                    : driver->device_get_gpu_uuid(&raw, device);
  if (result != CUDA_SUCCESS) {
    return driver.Error(result,
                        absl::StrCat("cuDeviceGetUuid(device=", device, ")"));
  }
  DeviceUuid uuid;
  std::memcpy(uuid.bytes.data(), raw.bytes, uuid.bytes.size());
  return uuid;
}

struct Seen {
  CUdevice device = 0;
  DeviceUuid uuid;
};

// What this process sees, by ordinal. Asks for no more than that: every import
// looks up its device here.
absl::StatusOr<std::vector<Seen>> SeeAll(const Driver& driver) {
  int count = 0;
  if (CUresult r = driver->cuDeviceGetCount(&count); r != CUDA_SUCCESS) {
    return driver.Error(r, "cuDeviceGetCount()");
  }
  std::vector<Seen> all(count);
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    Seen& seen = all[ordinal];
    if (CUresult r = driver->cuDeviceGet(&seen.device, ordinal);
        r != CUDA_SUCCESS) {
      return driver.Error(r,
                          absl::StrCat("cuDeviceGet(ordinal=", ordinal, ")"));
    }
    absl::StatusOr<DeviceUuid> uuid = ReadUuid(driver, seen.device);
    if (!uuid.ok()) return uuid.status();
    seen.uuid = *uuid;
  }
  return all;
}

std::string List(const std::vector<Seen>& all) {
  std::string text =
      absl::StrCat("this process sees ", all.size(), " devices (");
  for (std::size_t i = 0; i < all.size(); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ", ", i, " = ",
                    all[i].uuid.ToString());
  }
  return absl::StrCat(text, "). Check CUDA_VISIBLE_DEVICES.");
}

}  // namespace

// What Probe() found, per kind. Held for the length of one try, so that two
// threads do not try the same kind at once.
class Device::ProbeCache {
 public:
  absl::Status Get(const Device& device, HandleKind kind) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = results_.find(kind);
    if (found != results_.end()) return found->second;
    absl::Status result = ProbeKind(device, kind);
    // Running out of memory or descriptors says nothing about the kind.
    if (!absl::IsResourceExhausted(result)) results_.emplace(kind, result);
    return result;
  }

 private:
  std::mutex mutex_;
  std::map<HandleKind, absl::Status> results_;
};

std::string DeviceUuid::ToString() const {
  const std::string hex = absl::BytesToHexString(absl::string_view(
      reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  return absl::StrCat("GPU-", hex.substr(0, 8), "-", hex.substr(8, 4), "-",
                      hex.substr(12, 4), "-", hex.substr(16, 4), "-",
                      hex.substr(20));
}

absl::StatusOr<Device> Device::Make(const Driver& driver, int ordinal,
                                    CUdevice device, const DeviceUuid& uuid) {
  char name[256] = {};
  if (CUresult r = driver->cuDeviceGetName(name, sizeof(name) - 1, device);
      r != CUDA_SUCCESS) {
    return driver.Error(r,
                        absl::StrCat("cuDeviceGetName(device=", device, ")"));
  }
  return Device(std::make_shared<const State>(State{
      driver, device, ordinal, uuid, name, std::make_shared<ProbeCache>()}));
}

absl::StatusOr<std::vector<Device>> Device::All(const Driver& driver) {
  absl::StatusOr<std::vector<Seen>> seen = SeeAll(driver);
  if (!seen.ok()) return seen.status();
  std::vector<Device> devices;
  for (std::size_t i = 0; i < seen->size(); ++i) {
    absl::StatusOr<Device> device =
        Make(driver, static_cast<int>(i), (*seen)[i].device, (*seen)[i].uuid);
    if (!device.ok()) return device.status();
    devices.push_back(*std::move(device));
  }
  return devices;
}

absl::StatusOr<Device> Device::ByOrdinal(const Driver& driver, int ordinal) {
  absl::StatusOr<std::vector<Seen>> seen = SeeAll(driver);
  if (!seen.ok()) return seen.status();
  if (ordinal < 0 || static_cast<std::size_t>(ordinal) >= seen->size()) {
    return absl::NotFoundError(
        absl::StrCat("no device has ordinal ", ordinal, "; ", List(*seen)));
  }
  return Make(driver, ordinal, (*seen)[ordinal].device, (*seen)[ordinal].uuid);
}

absl::StatusOr<Device> Device::ByUuid(const Driver& driver,
                                      const DeviceUuid& uuid) {
  absl::StatusOr<std::vector<Seen>> seen = SeeAll(driver);
  if (!seen.ok()) return seen.status();
  for (std::size_t i = 0; i < seen->size(); ++i) {
    if ((*seen)[i].uuid == uuid) {
      return Make(driver, static_cast<int>(i), (*seen)[i].device, uuid);
    }
  }
  return absl::NotFoundError(
      absl::StrCat("no device has UUID ", uuid.ToString(), "; ", List(*seen)));
}

std::string Device::Describe() const {
  return absl::StrCat("device ", ordinal(), " (", name(), ", ",
                      uuid().ToString(), ")");
}

absl::StatusOr<bool> Device::CanAccess(const Device& owner) const {
  // The driver answers 0 for a device and itself (measured).
  if (*this == owner) return true;
  int can = 0;
  if (CUresult r = driver()->cuDeviceCanAccessPeer(&can, cuda_device(),
                                                   owner.cuda_device());
      r != CUDA_SUCCESS) {
    return driver().Error(
        r, absl::StrCat("cuDeviceCanAccessPeer(device=", ordinal(),
                        ", peer=", owner.ordinal(), ")"));
  }
  return can != 0;
}

absl::Status Device::Probe(HandleKind kind) const {
  return state_->probes->Get(*this, kind);
}

}  // namespace vmm
