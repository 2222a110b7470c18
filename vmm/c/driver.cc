#include "vmm/c/driver.h"

#include <algorithm>

#include "platform/base/status_macros.h"
#include "vmm/c/internal/call.h"
#include "vmm/c/internal/convert.h"
#include "vmm/c/internal/handles.h"
#include "vmm/memory/stream_capture.h"

using vmm::c::Call;
using vmm::c::Check;
using vmm::c::CheckGiven;
using vmm::c::Clear;
using vmm::c::Make;

vmmshare_status vmmshare_driver_load_system(vmmshare_driver** driver,
                                            vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Clear(driver, "driver"));
    return Make(driver, vmm::platform::Driver::LoadSystem());
  });
}

vmmshare_status vmmshare_driver_load(const char* path, vmmshare_driver** driver,
                                     vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Clear(driver, "driver"));
    RETURN_IF_ERROR(CheckGiven(path, "path"));
    return Make(driver, vmm::platform::Driver::LoadFrom(path));
  });
}

void vmmshare_driver_close(vmmshare_driver* driver) { vmm::c::Close(driver); }

const char* vmmshare_driver_describe(const vmmshare_driver* driver) {
  return Check(driver).ok() ? driver->description.c_str() : "";
}
std::int32_t vmmshare_driver_version(const vmmshare_driver* driver) {
  return Check(driver).ok() ? driver->driver.version() : 0;
}
std::int32_t vmmshare_driver_is_host_memory(const vmmshare_driver* driver) {
  return Check(driver).ok() && driver->driver.is_host_memory() ? 1 : 0;
}

vmmshare_status vmmshare_stream_is_captured(const vmmshare_driver* driver,
                                            void* stream,
                                            std::int32_t* is_captured,
                                            vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Clear(is_captured, "is_captured"));
    RETURN_IF_ERROR(Check(driver));
    ASSIGN_OR_RETURN(const bool captured,
                     vmm::IsCaptured(driver->driver, vmm::c::StreamOf(stream)));
    *is_captured = captured ? 1 : 0;
    return absl::OkStatus();
  });
}

vmmshare_status vmmshare_device_count(const vmmshare_driver* driver,
                                      std::int32_t* count,
                                      vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Clear(count, "count"));
    RETURN_IF_ERROR(Check(driver));
    ASSIGN_OR_RETURN(auto devices, vmm::Device::All(driver->driver));
    *count = static_cast<std::int32_t>(devices.size());
    return absl::OkStatus();
  });
}

vmmshare_status vmmshare_device_open(const vmmshare_driver* driver,
                                     std::int32_t ordinal,
                                     vmmshare_device** device,
                                     vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Clear(device, "device"));
    RETURN_IF_ERROR(Check(driver));
    return Make(device, vmm::Device::ByOrdinal(driver->driver, ordinal));
  });
}

vmmshare_status vmmshare_device_open_uuid(const vmmshare_driver* driver,
                                          const std::uint8_t uuid[16],
                                          vmmshare_device** device,
                                          vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Clear(device, "device"));
    RETURN_IF_ERROR(Check(driver));
    RETURN_IF_ERROR(CheckGiven(uuid, "uuid"));
    vmm::DeviceUuid wanted;
    std::copy_n(uuid, wanted.bytes.size(), wanted.bytes.begin());
    return Make(device, vmm::Device::ByUuid(driver->driver, wanted));
  });
}

void vmmshare_device_close(vmmshare_device* device) { vmm::c::Close(device); }

std::int32_t vmmshare_device_ordinal(const vmmshare_device* device) {
  return Check(device).ok() ? device->device.ordinal() : -1;
}
const char* vmmshare_device_name(const vmmshare_device* device) {
  return Check(device).ok() ? device->device.name().c_str() : "";
}
const char* vmmshare_device_uuid_text(const vmmshare_device* device) {
  return Check(device).ok() ? device->uuid.c_str() : "";
}
void vmmshare_device_uuid(const vmmshare_device* device,
                          std::uint8_t uuid[16]) {
  if (uuid == nullptr) return;
  vmm::DeviceUuid found;
  if (Check(device).ok()) found = device->device.uuid();
  std::copy(found.bytes.begin(), found.bytes.end(), uuid);
}

vmmshare_status vmmshare_device_can_access(const vmmshare_device* device,
                                           const vmmshare_device* owner,
                                           std::int32_t* can_access,
                                           vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Clear(can_access, "can_access"));
    RETURN_IF_ERROR(Check(device));
    RETURN_IF_ERROR(Check(owner));
    ASSIGN_OR_RETURN(const bool can, device->device.CanAccess(owner->device));
    *can_access = can ? 1 : 0;
    return absl::OkStatus();
  });
}

vmmshare_status vmmshare_device_probe(const vmmshare_device* device,
                                      std::uint32_t kind,
                                      vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Check(device));
    ASSIGN_OR_RETURN(const vmm::HandleKind one, vmm::c::KindOf(kind));
    return device->device.Probe(one);
  });
}
