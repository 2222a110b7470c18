#include "vmm/mapped_region.h"

#include <algorithm>
#include <utility>

#include "platform/check.h"

namespace vmm {

absl::StatusOr<MappedRegion> MappedRegion::Create(
    const platform::Driver& driver, PhysicalMemory memory,
    std::uint64_t alignment, absl::Span<const AccessGrant> grants) {
  absl::StatusOr<AddressRange> range =
      AddressRange::Reserve(driver, memory.size(), alignment);
  if (!range.ok()) return range.status();
  MappedRegion region(std::make_shared<AddressRange>(*std::move(range)),
                      std::make_shared<PhysicalMemory>(std::move(memory)));
  region.grants_.assign(grants.begin(), grants.end());
  absl::Status mapped = region.Remap();
  if (!mapped.ok()) return mapped;
  return region;
}

const PhysicalMemory& MappedRegion::memory() const {
  platform::Check(has_memory(), "the memory was dropped; Remap() it first");
  return *memory_;
}

absl::Status MappedRegion::SetAccess(absl::Span<const AccessGrant> grants) {
  if (!is_mapped()) {
    return absl::FailedPreconditionError(
        "SetAccess on unmapped memory; Remap() it first");
  }
  absl::Status set = mapping_->SetAccess(grants);
  if (set.ok()) Remember(grants);
  return set;
}

void MappedRegion::Remember(absl::Span<const AccessGrant> grants) {
  for (const AccessGrant& grant : grants) {
    auto same = std::find_if(
        grants_.begin(), grants_.end(),
        [&grant](const AccessGrant& g) { return g.who == grant.who; });
    if (same != grants_.end()) {
      same->access = grant.access;
    } else {
      grants_.push_back(grant);
    }
  }
}

absl::Status MappedRegion::Unmap() {
  if (!is_mapped()) {
    return absl::FailedPreconditionError("Unmap of memory that is not mapped");
  }
  absl::Status status = (*std::move(mapping_)).Unmap();
  mapping_.reset();
  return status;
}

absl::Status MappedRegion::Remap() {
  if (is_mapped()) {
    return absl::FailedPreconditionError("Remap of memory that is mapped");
  }
  platform::Check(has_memory(), "Remap without memory");
  absl::StatusOr<Mapping> mapping = Mapping::Map(range_, 0, memory_);
  if (!mapping.ok()) return mapping.status();
  absl::Status access = mapping->SetAccess(grants_);
  if (!access.ok()) return access;
  mapping_ = *std::move(mapping);
  return absl::OkStatus();
}

void MappedRegion::DropMemory() {
  platform::Check(!is_mapped(), "memory must be unmapped before it is dropped");
  memory_ = nullptr;
}

void MappedRegion::ReplaceMemory(PhysicalMemory memory) {
  platform::Check(!is_mapped(), "memory must be unmapped to be replaced");
  platform::Check(memory.size() == size(),
                  "memory must be replaced by memory of the same size");
  memory_ = std::make_shared<PhysicalMemory>(std::move(memory));
}

}  // namespace vmm
