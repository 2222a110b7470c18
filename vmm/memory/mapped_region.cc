#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/check.h"
#include "platform/base/status_macros.h"
#include "vmm/memory/mapping.h"

namespace vmm {

absl::StatusOr<MappedRegion> MappedRegion::Create(
    const platform::Driver& driver, PhysicalMemory memory,
    std::uint64_t alignment, absl::Span<const AccessGrant> grants) {
  ASSIGN_OR_RETURN(AddressRange range,
                   AddressRange::Reserve(driver, memory.size(), alignment));
  MappedRegion region(std::move(memory), grants);
  region.range_ = std::move(range);
  region.address_ = region.range_->base();
  RETURN_IF_ERROR(region.Remap());
  return region;
}

absl::StatusOr<MappedRegion> MappedRegion::CreateAt(
    Placement place, PhysicalMemory memory,
    absl::Span<const AccessGrant> grants) {
  const std::uint64_t room = place.range->size();
  if (place.offset > room || memory.size() > room - place.offset) {
    return absl::InvalidArgumentError(
        absl::StrCat(memory.size(), " bytes at offset ", place.offset,
                     " do not fit into an address range of ", room, " bytes"));
  }
  MappedRegion region(std::move(memory), grants);
  region.within_ = std::move(place.range);
  region.address_ = region.within_->base() + place.offset;
  RETURN_IF_ERROR(region.Remap());
  return region;
}

// What was held before goes in the order of destruction: unmapped first.
MappedRegion& MappedRegion::operator=(MappedRegion&& other) noexcept {
  if (this != &other) {
    mapping_ = std::move(other.mapping_);
    range_ = std::move(other.range_);
    within_ = std::move(other.within_);
    address_ = other.address_;
    size_ = other.size_;
    memory_ = std::move(other.memory_);
    other.memory_.reset();
    grants_ = std::move(other.grants_);
  }
  return *this;
}

const PhysicalMemory& MappedRegion::memory() const {
  platform::Check(has_memory(), "the memory was dropped; Remap() it first");
  return *memory_;
}

absl::StatusOr<bool> MappedRegion::IsRdmaCapable() const {
  if (has_memory()) return memory_->IsRdmaCapable();
  return absl::FailedPreconditionError(
      "the memory was discarded, so that nothing has the RDMA flag; Remap() "
      "it first");
}

absl::Status MappedRegion::SetAccess(absl::Span<const AccessGrant> grants) {
  if (!is_mapped()) {
    return absl::FailedPreconditionError(
        "SetAccess on unmapped memory; Remap() it first");
  }
  absl::Status set = vmm::SetAccess(mapping_, memory_->where(), grants);
  if (set.ok()) Remember(grants, grants_);
  return set;
}

void MappedRegion::Remember(absl::Span<const AccessGrant> grants, Grants& in) {
  for (const AccessGrant& grant : grants) {
    auto same = std::find_if(
        in.begin(), in.end(),
        [&grant](const AccessGrant& g) { return g.who == grant.who; });
    if (same != in.end()) {
      same->access = grant.access;
    } else {
      in.push_back(grant);
    }
  }
}

Access MappedRegion::AccessOf(const Location& who) const {
  for (const AccessGrant& grant : grants_) {
    if (grant.who == who) return grant.access;
  }
  return Access::kNone;
}

absl::Status MappedRegion::Unmap() {
  if (!is_mapped()) {
    return absl::FailedPreconditionError("Unmap of memory that is not mapped");
  }
  return vmm::Unmap(std::move(mapping_));
}

absl::Status MappedRegion::Remap() { return RemapWith(grants_); }

absl::Status MappedRegion::RemapToFill(const Location& writer) {
  Grants grants = grants_;
  Remember({{writer, Access::kReadWrite}}, grants);
  return RemapWith(grants);
}

absl::Status MappedRegion::RemapWith(const Grants& grants) {
  if (is_mapped()) {
    return absl::FailedPreconditionError("Remap of memory that is mapped");
  }
  platform::Check(has_memory(), "Remap without memory");
  ASSIGN_OR_RETURN(OwnedMapping mapping,
                   MapChunks(range().driver(), address_, *memory_));
  RETURN_IF_ERROR(vmm::SetAccess(mapping, memory_->where(), grants));
  mapping_ = std::move(mapping);
  return absl::OkStatus();
}

void MappedRegion::DropMemory() {
  platform::Check(!is_mapped(), "memory must be unmapped before it is dropped");
  memory_.reset();
}

void MappedRegion::ReplaceMemory(PhysicalMemory memory) {
  platform::Check(!is_mapped(), "memory must be unmapped to be replaced");
  platform::Check(memory.size() == size(),
                  "memory must be replaced by memory of the same size");
  memory_ = std::move(memory);
}

}  // namespace vmm
