// Device: one GPU that this process sees, known by its UUID.
//
// Ordinals differ between processes (CUDA_VISIBLE_DEVICES) and from NVML's, so
// processes name devices to each other by UUID. Finding and using a Device
// creates no context: none of vmmshare's memory calls needs one (measured on
// H100, driver 580).
#ifndef VMMSHARE_VMM_MEMORY_DEVICE_H_
#define VMMSHARE_VMM_MEMORY_DEVICE_H_

#include <cuda.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "platform/cuda/driver.h"
#include "vmm/memory/handle_kind.h"

namespace vmm {

// Of a GPU, or of a MIG instance where the process sees one. A value.
struct DeviceUuid {
  std::array<std::uint8_t, 16> bytes{};

  // As nvidia-smi prints it: "GPU-f0613ff9-b933-c38b-3a87-83fbe59ca8a9".
  std::string ToString() const;
  friend bool operator==(const DeviceUuid&, const DeviceUuid&) = default;
};

// A small value. What was learned of a device is kept with the driver, so that
// finding it again costs nothing. Thread-safe.
class Device {
 public:
  // NOT_FOUND when this process sees no such device: the message says what it
  // does see.
  static absl::StatusOr<Device> ByOrdinal(const platform::Driver& driver,
                                          int ordinal);
  static absl::StatusOr<Device> ByUuid(const platform::Driver& driver,
                                       const DeviceUuid& uuid);
  // Every device this process sees, by ordinal.
  static absl::StatusOr<std::vector<Device>> All(
      const platform::Driver& driver);

  const platform::Driver& driver() const { return driver_; }
  CUdevice cuda_device() const { return info_->device; }
  int ordinal() const { return info_->ordinal; }
  const DeviceUuid& uuid() const { return info_->uuid; }
  const std::string& name() const { return info_->name; }
  // "device 0 (NVIDIA H100 80GB HBM3, GPU-f0613ff9-...)".
  std::string Describe() const;

  // Whether this device can load and store `owner`'s memory: itself, or a peer
  // the driver allows. INTERNAL and others as the driver reports.
  absl::StatusOr<bool> CanAccess(const Device& owner) const;

  // OK when memory of this device can be shared as `kind`; otherwise the
  // reason and what to do. The answer comes from a real try (create, export,
  // import, map, set access; and write and read back where the device's
  // primary context is active already), because attributes say yes where calls
  // say no. Tried once per device and kind, then remembered.
  absl::Status Probe(HandleKind kind) const;

  friend bool operator==(const Device& a, const Device& b) {
    return a.driver() == b.driver() && a.cuda_device() == b.cuda_device();
  }

 private:
  class ProbeCache;
  // What is known of a device, kept with the driver: it does not change while
  // a process lives, and every import looks one up.
  struct Info {
    CUdevice device = 0;
    int ordinal = 0;
    DeviceUuid uuid;
    std::string name;
    std::shared_ptr<ProbeCache> probes;
  };
  using Infos = std::vector<std::shared_ptr<const Info>>;

  static absl::StatusOr<Infos> Ask(const platform::Driver& driver);
  static absl::StatusOr<std::shared_ptr<const Infos>> List(
      const platform::Driver& driver);
  static std::string Describe(const Infos& infos);

  Device(platform::Driver driver, std::shared_ptr<const Info> info)
      : driver_(std::move(driver)), info_(std::move(info)) {}

  platform::Driver driver_;
  std::shared_ptr<const Info> info_;
};

}  // namespace vmm

#endif  // VMMSHARE_VMM_MEMORY_DEVICE_H_
