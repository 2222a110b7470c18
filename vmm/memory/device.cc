#include "vmm/memory/device.h"

#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "platform/base/mutex.h"
#include "platform/base/status_macros.h"
#include "platform/ipc/lifeline.h"
#include "vmm/memory/internal/exporter.h"

namespace vmm {
namespace {

using platform::Driver;
using platform::DriverTable;

// A MIG instance has a UUID of its own, which only the second version of the
// call answers; the first answers that of the whole GPU.
absl::StatusOr<DeviceUuid> ReadUuid(const Driver& driver, CUdevice device) {
  const bool knows_mig = driver.Need<&DriverTable::device_get_mig_uuid>().ok();
  CUuuid raw{};
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

absl::StatusOr<std::string> ReadName(const Driver& driver, CUdevice device) {
  char name[256] = {};
  if (CUresult r = driver->cuDeviceGetName(name, sizeof(name) - 1, device);
      r != CUDA_SUCCESS) {
    return driver.Error(r,
                        absl::StrCat("cuDeviceGetName(device=", device, ")"));
  }
  return std::string(name);
}

}  // namespace

// What Probe() found, per kind. A try waits for the device, and others' calls do not
// wait for it: two threads may try the same kind at once.
class Device::ProbeCache {
 public:
  absl::Status Get(const Device& device, HandleKind kind) {
    platform::MutexLock lock(mutex_);
    if (const auto known = results_.find(kind); known != results_.end()) {
      return known->second;
    }
    lock.Unlock();
    absl::Status result = ProbeKind(device, kind);
    lock.Lock();
    // What the driver has no name for may be of the kind, or pass.
    if (!MayPass(result) && platform::ResultOf(result) != CUDA_ERROR_UNKNOWN) {
      results_.emplace(kind, result);
    }
    return result;
  }

 private:
  platform::Mutex mutex_;
  std::map<HandleKind, absl::Status> results_ ABSL_GUARDED_BY(mutex_);
};

std::string DeviceUuid::ToString() const {
  const std::string hex = absl::BytesToHexString(absl::string_view(
      reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  return absl::StrCat("GPU-", hex.substr(0, 8), "-", hex.substr(8, 4), "-",
                      hex.substr(12, 4), "-", hex.substr(16, 4), "-",
                      hex.substr(20));
}

absl::StatusOr<Device::Infos> Device::Ask(const Driver& driver) {
  int count = 0;
  if (CUresult r = driver->cuDeviceGetCount(&count); r != CUDA_SUCCESS) {
    return driver.Error(r, "cuDeviceGetCount()");
  }
  // It answers: this process has no context of one that it was forked from.
  platform::LetGoOfInheritedLifelines();
  Infos infos;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    CUdevice device = 0;
    if (CUresult r = driver->cuDeviceGet(&device, ordinal); r != CUDA_SUCCESS) {
      return driver.Error(r,
                          absl::StrCat("cuDeviceGet(ordinal=", ordinal, ")"));
    }
    ASSIGN_OR_RETURN(const DeviceUuid uuid, ReadUuid(driver, device));
    ASSIGN_OR_RETURN(std::string name, ReadName(driver, device));
    infos.push_back(std::make_shared<const Info>(
        Info{device, ordinal, uuid, std::move(name),
             std::make_shared<ProbeCache>()}));
  }
  return infos;
}

absl::StatusOr<std::shared_ptr<const Device::Infos>> Device::List(
    const Driver& driver) {
  absl::StatusOr<Driver::Notes> notes =
      driver.RememberedNotes([&driver]() -> absl::StatusOr<Driver::Notes> {
        ASSIGN_OR_RETURN(Infos infos, Ask(driver));
        return std::make_shared<const Infos>(std::move(infos));
      });
  if (!notes.ok()) return notes.status();
  return std::static_pointer_cast<const Infos>(*std::move(notes));
}

std::string Device::Describe(const Infos& infos) {
  std::string text =
      absl::StrCat("this process sees ", infos.size(), " devices (");
  for (const std::shared_ptr<const Info>& info : infos) {
    absl::StrAppend(&text, info->ordinal == 0 ? "" : ", ", info->ordinal, " = ",
                    info->uuid.ToString());
  }
  return absl::StrCat(text, "). Check CUDA_VISIBLE_DEVICES.");
}

absl::StatusOr<std::vector<Device>> Device::All(const Driver& driver) {
  ASSIGN_OR_RETURN(const std::shared_ptr<const Infos> infos, List(driver));
  std::vector<Device> devices;
  for (const std::shared_ptr<const Info>& info : *infos) {
    devices.push_back(Device(driver, info));
  }
  return devices;
}

absl::StatusOr<Device> Device::ByOrdinal(const Driver& driver, int ordinal) {
  ASSIGN_OR_RETURN(const std::shared_ptr<const Infos> infos, List(driver));
  for (const std::shared_ptr<const Info>& info : *infos) {
    if (info->ordinal == ordinal) return Device(driver, info);
  }
  return absl::NotFoundError(
      absl::StrCat("no device has ordinal ", ordinal, "; ", Describe(*infos)));
}

absl::StatusOr<Device> Device::ByUuid(const Driver& driver,
                                      const DeviceUuid& uuid) {
  ASSIGN_OR_RETURN(const std::shared_ptr<const Infos> infos, List(driver));
  for (const std::shared_ptr<const Info>& info : *infos) {
    if (info->uuid == uuid) return Device(driver, info);
  }
  return absl::NotFoundError(absl::StrCat(
      "no device has UUID ", uuid.ToString(), "; ", Describe(*infos)));
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
  return info_->probes->Get(*this, kind);
}

}  // namespace vmm
