// PinnedBytes: memory of the host, from and to which a device copies at the rate of
// the bus; internal to vmm/.
#ifndef VMMSHARE_VMM_MEMORY_INTERNAL_PINNED_BYTES_H_
#define VMMSHARE_VMM_MEMORY_INTERNAL_PINNED_BYTES_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <variant>

#include "absl/status/statusor.h"
#include "platform/base/owned.h"
#include "platform/cuda/driver.h"
#include "vmm/memory/device.h"
#include "vmm/memory/mapping.h"

namespace vmm {

// CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, which headers
// before CUDA 12.9 lack, and drivers, as CUDA_VERSION, do not know.
inline constexpr int kHostMemoryAttribute = 141;
inline constexpr int kHostMemoryAttributeSince = 12090;

// Memory of cuMemHostAlloc(), which goes with its context.
struct HostBlock {
  std::optional<platform::Driver> driver;
  std::shared_ptr<const PrimaryContext> context;
  void* at = nullptr;
  std::uint64_t size = 0;
};

struct HostBlockTraits {
  using Value = HostBlock;
  static Value Nothing() { return {}; }
  static bool Holds(const Value& value) { return value.at != nullptr; }
  // Waits for all work of the device, as cuMemFreeHost() does.
  static void Close(const Value& value);
};

// Memory of cuMemCreate() on the node next to the device: half as long in the making
// as cuMemHostAlloc()'s, copied as fast, and gone without a wait for the device
// (measured on an H200). Where there is none (before CUDA 12.2; the device's attribute
// says so; OUT_OF_MEMORY, as that node may be full and others not, NOT_PERMITTED,
// NOT_SUPPORTED or OPERATING_SYSTEM, and before CUDA 12.9 any error), it is
// cuMemHostAlloc()'s. Move-only; thread-compatible.
// REQUIRES: no copy is under way when it is destroyed.
class PinnedBytes {
 public:
  // RESOURCE_EXHAUSTED when the host has not so much memory to pin; others as the
  // driver answers. REQUIRES: `context`, which is of `device`, is current.
  static absl::StatusOr<PinnedBytes> Pin(
      const Device& device, std::shared_ptr<const PrimaryContext> context,
      std::uint64_t size);

  void* at() const;
  std::uint64_t size() const { return size_; }

 private:
  using Memory = std::variant<MappedRegion, platform::Owned<HostBlockTraits>>;

  PinnedBytes(Memory memory, std::uint64_t size)
      : memory_(std::move(memory)), size_(size) {}

  Memory memory_;
  std::uint64_t size_;
};

}  // namespace vmm

#endif  // VMMSHARE_VMM_MEMORY_INTERNAL_PINNED_BYTES_H_
