// CRC-32C of much memory of a device, taken there; internal to vmm/.
//
// A processor takes it of 20 to 60 GB a second once the bytes are with it, and they
// come over the bus at 25 to 55. Here they stay where they are.
#ifndef VMMSHARE_VMM_WEIGHTS_INTERNAL_CHECKSUM_KERNEL_H_
#define VMMSHARE_VMM_WEIGHTS_INTERNAL_CHECKSUM_KERNEL_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "vmm/memory/device.h"
#include "vmm/memory/driver_block.h"
#include "vmm/weights/internal/piece_kernel.h"

namespace vmm::weights {

// Thread-safe.
class ChecksumKernel {
 public:
  // Errors as PieceKernel::Load().
  static absl::StatusOr<ChecksumKernel> Load(const Device& device);

  // Has the driver load the kernel into the current context, where it takes 2 MiB
  // (measured on H100). RESOURCE_EXHAUSTED when these are not there.
  absl::Status Prepare() const { return kernel_.Run(nullptr, {}); }

  // The checksum of each, also of those without bytes. Returns when the device has
  // taken them, in its current context's default stream. `pinned` is memory of the
  // host's, at the same address for the device, in which it puts 4 bytes for each
  // 16 KiB: the more there is, the fewer times it is waited for. Nothing is under way
  // when it returns, also with an error.
  // REQUIRES: the device may read the ranges; `pinned` is not empty; this thread
  // captures no stream that synchronises with that one.
  absl::StatusOr<std::vector<std::uint32_t>> Take(
      absl::Span<const AddressSpan> ranges,
      absl::Span<std::uint32_t> pinned) const;

 private:
  ChecksumKernel(platform::Driver driver, PieceKernel kernel)
      : driver_(std::move(driver)), kernel_(std::move(kernel)) {}

  platform::Driver driver_;
  PieceKernel kernel_;
};

}  // namespace vmm::weights

#endif  // VMMSHARE_VMM_WEIGHTS_INTERNAL_CHECKSUM_KERNEL_H_
