// Device: one GPU that this process sees, known by its UUID. Location and
// AccessGrant: where memory lives, and who may touch it. PrimaryContext: a
// device's primary context, held and made current for a scope.
//
// Ordinals differ between processes (CUDA_VISIBLE_DEVICES) and from NVML's, so
// processes name devices to each other by UUID.
//
// Finding and using a Device creates no context, and making, sharing and importing
// memory needs none (measured on H100, driver 580). Some calls take the device's
// primary one, and make it if nobody has: memory of kLegacyIpc and the probe of that
// kind, adopted memory, dma-bufs, contents that a release keeps. Copies, fills,
// streams and kernels need a context; programs that use the CUDA runtime have it
// already.
#ifndef VMMSHARE_VMM_MEMORY_DEVICE_H_
#define VMMSHARE_VMM_MEMORY_DEVICE_H_

#include <cuda.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "platform/base/owned.h"
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
  // say no. Tried once per device and kind, then remembered, but for a failure
  // that says nothing about the kind: out of memory or descriptors, a fabric
  // that is not ready, a call that the capture of a stream refuses, a fault in the
  // program's context, a device that another process has for itself, one that
  // the driver has no name for (CUDA_ERROR_UNKNOWN), or a device that has not
  // written the word in 10 s (UNAVAILABLE): it has stopped, is full of kernels that
  // run on, or as many streams wait as there are hardware queues (docs/ordering.md).
  // Those 2 MiB stay for good, of each such try. The word is read without a deadline.
  // Breaks no capture.
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

// A device, or a NUMA node of the host. A value.
class Location {
 public:
  static Location On(Device device) { return Location(std::move(device), 0); }
  static Location HostNuma(int node) { return Location(std::nullopt, node); }

  bool is_host() const { return !device_.has_value(); }
  // REQUIRES: !is_host().
  const Device& device() const { return *device_; }
  // REQUIRES: is_host().
  int numa_node() const { return node_; }

  CUmemLocation ToCuda() const;
  std::string Describe() const;
  friend bool operator==(const Location& a, const Location& b) = default;

 private:
  Location(std::optional<Device> device, int node)
      : device_(std::move(device)), node_(node) {}

  std::optional<Device> device_;
  int node_;
};

// Where memory is, as its properties tell. Nothing of a device that this
// process does not see.
struct Place {
  std::optional<int> host_numa_node;
  std::optional<int> device_ordinal;
  std::string unknown;  // Why nothing can be said, if so.
};

Place PlaceOf(const CUmemLocation& location);

enum class Access { kNone = 0, kRead = 1, kReadWrite = 3 };

// `who` may access memory in this way. Only host memory can be granted to the
// host (the driver returns NOT_SUPPORTED for device memory, measured).
struct AccessGrant {
  Location who;
  Access access = Access::kReadWrite;
};

// OK when every device of `grants` can reach memory at `where`; otherwise
// FAILED_PRECONDITION with the pair that cannot. Checked before the driver is
// asked, because a kernel that touches memory without peer access hangs or
// kills its context.
absl::Status CheckReachable(const Location& where,
                            absl::Span<const AccessGrant> grants);

struct ContextUse {
  std::optional<platform::Driver> driver;
  CUdevice device = 0;
  CUcontext context = nullptr;
};

struct RetainedContextTraits {
  using Value = ContextUse;
  static Value Nothing() { return {}; }
  static bool Holds(const Value& value) { return value.context != nullptr; }
  static void Close(const Value& value);
};

struct PushedContextTraits {
  using Value = ContextUse;
  static Value Nothing() { return {}; }
  static bool Holds(const Value& value) { return value.context != nullptr; }
  static void Close(const Value& value);
};

// Makes a context current on the calling thread while it lives, then restores
// the one before. Destroy on the same thread, in reverse order of making.
using CurrentContext = platform::Owned<PushedContextTraits>;

// Makes any context current, for example a stream's.
absl::StatusOr<CurrentContext> MakeCurrent(const platform::Driver& driver,
                                           CUcontext context);

// Holds a reference to the primary context of a device. Move-only.
class PrimaryContext {
 public:
  // Creates the context if nobody has: that costs time and device memory.
  static absl::StatusOr<PrimaryContext> Retain(const Device& device);
  // Whether some part of this process has made it already.
  static absl::StatusOr<bool> IsActive(const Device& device);

  CUcontext context() const { return context_.get().context; }
  absl::StatusOr<CurrentContext> MakeCurrent() const;

 private:
  explicit PrimaryContext(ContextUse use)
      : context_(
            platform::Owned<RetainedContextTraits>::Adopt(std::move(use))) {}

  platform::Owned<RetainedContextTraits> context_;
};

}  // namespace vmm

#endif  // VMMSHARE_VMM_MEMORY_DEVICE_H_
