// An Allocation that has been made: who may access it, and its memory unmapped,
// given back and mapped again at the same address.
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"
#include "vmm/memory/allocation.h"

namespace vmm {

absl::StatusOr<MappedRegion*> Allocation::Mapped(absl::string_view call) {
  if (auto* region = std::get_if<MappedRegion>(&memory_)) return region;
  return absl::UnimplementedError(absl::StrCat(
      call, " of memory ", id_.ToString(),
      ", which is cuMemAlloc()'s: only cuMemCreate()'s can be mapped and "
      "unmapped. No other kind of AllocationOptions::sharing worked here; "
      "passed_over() says why."));
}

absl::Status Allocation::SetAccess(absl::Span<const AccessGrant> grants) {
  ASSIGN_OR_RETURN(MappedRegion* const region, Mapped("SetAccess"));
  return region->SetAccess(grants);
}

absl::Status Allocation::Unmap() {
  ASSIGN_OR_RETURN(MappedRegion* const region, Mapped("Unmap"));
  return region->Unmap();
}

absl::Status Allocation::Discard() {
  ASSIGN_OR_RETURN(MappedRegion* const region, Mapped("Discard"));
  absl::Status unmapped =
      region->is_mapped() ? region->Unmap() : absl::OkStatus();
  region->DropMemory();
  ++id_.generation;
  return unmapped;
}

absl::StatusOr<MappedRegion*> Allocation::MadeAgain() {
  ASSIGN_OR_RETURN(MappedRegion* const region, Mapped("Remap"));
  if (!region->has_memory()) {
    ASSIGN_OR_RETURN(PhysicalMemory memory,
                     PhysicalMemory::Create(device_.driver(), where_, layout_,
                                            kinds_, users_, rdma_));
    region->ReplaceMemory(std::move(memory));
  }
  return region;
}

absl::Status Allocation::Remap() {
  ASSIGN_OR_RETURN(MappedRegion* const region, MadeAgain());
  return region->Remap();
}

absl::Status Allocation::RemapToFill() {
  ASSIGN_OR_RETURN(MappedRegion* const region, MadeAgain());
  return region->RemapToFill(Location::On(device_));
}

absl::Status Allocation::EndFill() {
  ASSIGN_OR_RETURN(MappedRegion* const region, Mapped("EndFill"));
  const Location here = Location::On(device_);
  const Access access = region->AccessOf(here);
  if (access == Access::kReadWrite) return absl::OkStatus();
  return region->SetAccess({{here, access}});
}

}  // namespace vmm
