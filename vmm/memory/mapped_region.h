// MappedRegion: what Allocation and ImportedAllocation have in common.
//
// Memory, the addresses it lives at, and who may access it there. The
// addresses stay reserved while the region lives, so that memory can be
// unmapped and mapped again at the same address.
#ifndef VMMSHARE_VMM_MEMORY_MAPPED_REGION_H_
#define VMMSHARE_VMM_MEMORY_MAPPED_REGION_H_

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "vmm/memory/address_range.h"
#include "vmm/memory/location.h"
#include "vmm/memory/mapping.h"
#include "vmm/memory/physical_memory.h"

namespace vmm {

// A place within addresses that were reserved before. A value; it keeps them
// reserved.
struct Placement {
  std::shared_ptr<const AddressRange> range;
  std::uint64_t offset = 0;  // A multiple of the granularity.
};

// Move-only, thread-compatible. Internal: users see the two classes above.
class MappedRegion {
 public:
  // Reserves addresses, maps `memory` there and sets access.
  static absl::StatusOr<MappedRegion> Create(
      const platform::Driver& driver, PhysicalMemory memory,
      std::uint64_t alignment, absl::Span<const AccessGrant> grants);
  // The same at `place`. INVALID_ARGUMENT when it does not fit there; as
  // cuMemMap reports when something is mapped there.
  static absl::StatusOr<MappedRegion> CreateAt(
      Placement place, PhysicalMemory memory,
      absl::Span<const AccessGrant> grants);

  MappedRegion(MappedRegion&&) noexcept = default;
  MappedRegion& operator=(MappedRegion&& other) noexcept;

  CUdeviceptr address() const { return address_; }
  std::uint64_t size() const { return size_; }
  bool is_mapped() const { return mapping_.has_value(); }
  // REQUIRES: has_memory().
  const PhysicalMemory& memory() const;
  bool has_memory() const { return memory_.has_value(); }
  // FAILED_PRECONDITION when it was dropped.
  absl::StatusOr<bool> IsRdmaCapable() const;

  absl::Status SetAccess(absl::Span<const AccessGrant> grants);
  absl::Status Unmap();
  absl::Status Remap();
  // REQUIRES: !is_mapped(), and Replace: the same size.
  void DropMemory();
  void ReplaceMemory(PhysicalMemory memory);

 private:
  MappedRegion(PhysicalMemory memory, absl::Span<const AccessGrant> grants)
      : grants_(grants.begin(), grants.end()),
        size_(memory.size()),
        memory_(std::move(memory)) {}

  const AddressRange& range() const {
    return range_.has_value() ? *range_ : *within_;
  }

  void Remember(absl::Span<const AccessGrant> grants);

  absl::InlinedVector<AccessGrant, 1> grants_;  // Applied again by Remap().
  std::uint64_t size_;
  CUdeviceptr address_ = 0;  // In range().
  // Held by value, and destroyed from the last to the first: unmapped,
  // addresses freed, memory released.
  std::optional<PhysicalMemory> memory_;
  std::shared_ptr<const AddressRange> within_;  // Of a Placement; else
  std::optional<AddressRange> range_;           // its own.
  OwnedMapping mapping_;
};

}  // namespace vmm

#endif  // VMMSHARE_VMM_MEMORY_MAPPED_REGION_H_
