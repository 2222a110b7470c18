#include "vmm/memory/internal/pinned_bytes.h"

#include <cuda.h>

#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "platform/base/annotate.h"
#include "platform/base/status_macros.h"
#include "vmm/memory/internal/device_attribute.h"
#include "vmm/memory/physical_memory.h"
#include "vmm/memory/stream_capture.h"

namespace vmm {
namespace {

using platform::Driver;

// False: nobody needs to try.
absl::StatusOr<bool> MayHaveHostMemory(const Device& device) {
  const int version = device.driver().version();
  if (version < kHostMemorySince) return false;
  if (version < kHostMemoryAttributeSince) return true;
  ASSIGN_OR_RETURN(
      const int supported,
      DeviceAttribute(device,
                      static_cast<CUdevice_attribute>(kHostMemoryAttribute),
                      "HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED"));
  return supported != 0;
}

// Of a machine where nobody gets such memory, as in a container that may not use a
// NUMA node. Of a driver that cannot be asked, whatever it answers says that. And of a
// node that is full, or has no memory: the driver takes none of another one for it, as
// it does for cuMemHostAlloc().
bool IsRefusal(const Driver& driver, const absl::Status& status) {
  const std::optional<CUresult> result = platform::ResultOf(status);
  if (result == CUDA_ERROR_OUT_OF_MEMORY) return true;
  if (absl::IsResourceExhausted(status)) return false;  // Descriptors, say.
  return driver.version() < kHostMemoryAttributeSince ||
         result == CUDA_ERROR_NOT_PERMITTED ||
         result == CUDA_ERROR_NOT_SUPPORTED ||
         result == CUDA_ERROR_OPERATING_SYSTEM;
}

// For the device and the CPU.
absl::StatusOr<MappedRegion> CreateOnHost(const Device& device, int node,
                                          std::uint64_t size) {
  const Location where = Location::HostNuma(node);
  const Driver& driver = device.driver();
  ASSIGN_OR_RETURN(const std::uint64_t granularity,
                   PhysicalMemory::Granularity(driver, where, {}));
  ASSIGN_OR_RETURN(const ChunkLayout layout, LayOut(size, 0, granularity));
  ASSIGN_OR_RETURN(PhysicalMemory memory,
                   PhysicalMemory::Create(driver, where, layout, {}));
  return MappedRegion::Create(driver, std::move(memory), 0,
                              {{{Location::On(device), Access::kReadWrite},
                                {where, Access::kReadWrite}}});
}

absl::StatusOr<platform::Owned<HostBlockTraits>> Allocate(
    const Driver& driver, std::shared_ptr<const PrimaryContext> context,
    std::uint64_t size) {
  HostBlock block{driver, std::move(context), nullptr, size};
  if (CUresult r = driver->cuMemHostAlloc(&block.at, size, 0);
      r != CUDA_SUCCESS) {
    return driver.Error(r, absl::StrCat("cuMemHostAlloc(", size, " bytes)"),
                        "The host must have so much memory that can be pinned. "
                        "Free some of it, or raise the limit of locked "
                        "memory.");
  }
  return platform::Owned<HostBlockTraits>::Adopt(std::move(block));
}

}  // namespace

void HostBlockTraits::Close(const Value& value) {
  const Driver& driver = *value.driver;
  const RelaxedCapture relaxed(driver);
  const absl::StatusOr<CurrentContext> current = value.context->MakeCurrent();
  // Whatever context is current may do as well.
  if (!current.ok()) platform::ReportReleaseFailure(current.status());
  const CUresult r = driver->cuMemFreeHost(value.at);
  if (r == CUDA_SUCCESS) return;
  platform::ReportReleaseFailure(driver.Error(
      r, absl::StrCat("cuMemFreeHost(", value.size, " bytes of the host)")));
}

absl::StatusOr<PinnedBytes> PinnedBytes::Pin(
    const Device& device, std::shared_ptr<const PrimaryContext> context,
    std::uint64_t size) {
  const RelaxedCapture relaxed(device.driver());
  ASSIGN_OR_RETURN(const bool may_have, MayHaveHostMemory(device));
  std::string before =
      absl::StrCat(size, " bytes of the host cannot be pinned");
  if (may_have) {
    ASSIGN_OR_RETURN(const int node, HostNodeOf(device));
    absl::StatusOr<MappedRegion> region = CreateOnHost(device, node, size);
    if (region.ok()) return PinnedBytes(*std::move(region), size);
    if (!IsRefusal(device.driver(), region.status())) {
      return platform::Annotate(region.status(), before);
    }
    before = std::string(
        platform::Annotate(region.status(), before, "And then").message());
  }
  auto block = Allocate(device.driver(), std::move(context), size);
  if (!block.ok()) return platform::Annotate(block.status(), before);
  return PinnedBytes(*std::move(block), size);
}

void* PinnedBytes::at() const {
  if (const auto* region = std::get_if<MappedRegion>(&memory_)) {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): the driver's own type.
    return reinterpret_cast<void*>(region->address());
  }
  return std::get<platform::Owned<HostBlockTraits>>(memory_).get().at;
}

}  // namespace vmm
