// HostCopy: what was in memory of the driver's, in pinned memory of the host;
// internal to vmm/.
#ifndef VMMSHARE_VMM_MEMORY_INTERNAL_HOST_COPY_H_
#define VMMSHARE_VMM_MEMORY_INTERNAL_HOST_COPY_H_

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "platform/cuda/driver.h"
#include "vmm/memory/device.h"
#include "vmm/memory/internal/pinned_bytes.h"

namespace vmm {

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

  std::uint64_t size() const { return bytes_.size(); }
  // To as many bytes, which the device may write to.
  absl::Status WriteTo(CUdeviceptr to) const;

 private:
  HostCopy(Device device, std::shared_ptr<const PrimaryContext> context,
           PinnedBytes bytes)
      : device_(std::move(device)),
        context_(std::move(context)),
        bytes_(std::move(bytes)) {}

  Device device_;
  std::shared_ptr<const PrimaryContext> context_;
  PinnedBytes bytes_;
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
