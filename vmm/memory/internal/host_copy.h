// HostCopy: what was in memory of the driver's, in pinned memory of the host;
// internal to vmm/.
#ifndef VMMSHARE_VMM_MEMORY_INTERNAL_HOST_COPY_H_
#define VMMSHARE_VMM_MEMORY_INTERNAL_HOST_COPY_H_

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "platform/base/owned.h"
#include "platform/cuda/driver.h"
#include "vmm/memory/device.h"

namespace vmm {

// Memory of cuMemHostAlloc(), which goes with its context.
struct PinnedBytes {
  std::optional<platform::Driver> driver;
  std::shared_ptr<const PrimaryContext> context;
  void* at = nullptr;
  std::uint64_t size = 0;
};

struct PinnedBytesTraits {
  using Value = PinnedBytes;
  static Value Nothing() { return {}; }
  static bool Holds(const Value& value) { return value.at != nullptr; }
  static void Close(const Value& value);
};

// RESOURCE_EXHAUSTED when the host has not so much memory to pin. REQUIRES:
// `context` is current.
absl::StatusOr<platform::Owned<PinnedBytesTraits>> Pin(
    const platform::Driver& driver,
    std::shared_ptr<const PrimaryContext> context, std::uint64_t size);

// OK, or the error `result` of the copy `name` of `size` bytes at `address`.
absl::Status Copied(const platform::Driver& driver, CUresult result,
                    absl::string_view name, CUdeviceptr address,
                    std::uint64_t size);

// Move-only, thread-compatible. All copies are made in the device's primary
// context, which is made if nobody has, on a stream of their own, which waits
// for no other; and have ended when the call returns.
class HostCopy {
 public:
  // REQUIRES: `device` has access to the `size` bytes, which nobody writes to.
  // RESOURCE_EXHAUSTED when the host has not so much memory to pin.
  static absl::StatusOr<HostCopy> Of(const Device& device, CUdeviceptr from,
                                     std::uint64_t size);

  std::uint64_t size() const { return bytes_.get().size; }
  // To as many bytes, which the device may write to.
  absl::Status WriteTo(CUdeviceptr to) const;

 private:
  HostCopy(Device device, platform::Owned<PinnedBytesTraits> bytes)
      : device_(std::move(device)), bytes_(std::move(bytes)) {}

  Device device_;
  platform::Owned<PinnedBytesTraits> bytes_;
};

// The `size` bytes of the file at `path` from `offset` on, to memory that
// `device` may write to. NOT_FOUND for a file that is not there, others as the
// system answers; DATA_LOSS for one that ends too early; INVALID_ARGUMENT for an
// offset at which no file has so many. No copy is under way any more when it
// returns, also with an error.
absl::Status CopyFromFile(const Device& device, const std::string& path,
                          std::uint64_t offset, CUdeviceptr to,
                          std::uint64_t size);

}  // namespace vmm

#endif  // VMMSHARE_VMM_MEMORY_INTERNAL_HOST_COPY_H_
