// MappedRegion: what Allocation and ImportedAllocation have in common.
//
// Memory, the addresses it lives at, and who may access it there. The
// addresses stay reserved while the region lives, so that memory can be
// unmapped and mapped again at the same address.
#ifndef VMMSHARE_VMM_MAPPED_REGION_H_
#define VMMSHARE_VMM_MAPPED_REGION_H_

#include <cuda.h>

#include <cstdint>
#include <optional>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "vmm/address_range.h"
#include "vmm/location.h"
#include "vmm/mapping.h"
#include "vmm/physical_memory.h"

namespace vmm {

// Move-only, thread-compatible. Internal: users see the two classes above.
class MappedRegion {
 public:
  // Reserves addresses, maps `memory` there and sets access.
  static absl::StatusOr<MappedRegion> Create(
      const platform::Driver& driver, PhysicalMemory memory,
      std::uint64_t alignment, absl::Span<const AccessGrant> grants);

  MappedRegion(MappedRegion&&) noexcept = default;
  MappedRegion& operator=(MappedRegion&& other) noexcept;

  CUdeviceptr address() const { return range_.base(); }
  std::uint64_t size() const { return range_.size(); }
  bool is_mapped() const { return mapping_.has_value(); }
  // REQUIRES: has_memory().
  const PhysicalMemory& memory() const;
  bool has_memory() const { return memory_.has_value(); }

  absl::Status SetAccess(absl::Span<const AccessGrant> grants);
  absl::Status Unmap();
  absl::Status Remap();
  // REQUIRES: !is_mapped(), and Replace: the same size.
  void DropMemory();
  void ReplaceMemory(PhysicalMemory memory);

 private:
  explicit MappedRegion(AddressRange range) : range_(std::move(range)) {}

  void Remember(absl::Span<const AccessGrant> grants);

  absl::InlinedVector<AccessGrant, 1> grants_;  // Applied again by Remap().
  // Held by value, and destroyed from the last to the first: unmapped,
  // addresses freed, memory released.
  std::optional<PhysicalMemory> memory_;
  AddressRange range_;
  OwnedMapping mapping_;
};

}  // namespace vmm

#endif  // VMMSHARE_VMM_MAPPED_REGION_H_
