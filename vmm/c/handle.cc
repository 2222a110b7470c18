#include "vmm/c/internal/handle.h"

#include "absl/strings/str_cat.h"

namespace vmm::c {

absl::string_view NameOf(HandleType type) {
  switch (type) {
    case HandleType::kDriver:
      return "vmmshare_driver";
    case HandleType::kDevice:
      return "vmmshare_device";
    case HandleType::kMemory:
      return "vmmshare_memory";
    case HandleType::kServer:
      return "vmmshare_server";
    case HandleType::kShare:
      return "vmmshare_share";
    case HandleType::kChannel:
      return "vmmshare_channel";
    case HandleType::kPool:
      return "vmmshare_pool";
    case HandleType::kImportedPool:
      return "vmmshare_imported_pool";
    case HandleType::kBlock:
      return "vmmshare_block";
    case HandleType::kFencePool:
      return "vmmshare_fence_pool";
    case HandleType::kFence:
      return "vmmshare_fence";
    case HandleType::kKeeper:
      return "vmmshare_keeper";
    case HandleType::kRingHome:
      return "vmmshare_ring_home";
    case HandleType::kRing:
      return "vmmshare_ring";
    case HandleType::kRestorable:
      return "vmmshare_restorable";
    case HandleType::kRegion:
      return "vmmshare_region";
    case HandleType::kFenceArray:
      return "vmmshare_fence_array";
    case HandleType::kWeightsLayout:
      return "vmmshare_weights_layout";
    case HandleType::kWeightsWriter:
      return "vmmshare_weights_writer";
    case HandleType::kWeights:
      return "vmmshare_weights";
    case HandleType::kSafetensors:
      return "vmmshare_safetensors";
    case HandleType::kFetched:
      return "vmmshare_fetched";
    case HandleType::kSymmetric:
      return "vmmshare_symmetric";
  }
  return "handle";
}

absl::Status WhyNoHandle(HandleType type, bool null, bool sound) {
  if (null) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a ", NameOf(type), " is NULL. Check the call that makes it."));
  }
  if (!sound) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a handle is no ", NameOf(type), ". Check the order of arguments."));
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "the ", NameOf(type),
      " is the parent's, and this is a forked child. "
      "Make what the child needs in the child, or start it by exec()."));
}

}  // namespace vmm::c
