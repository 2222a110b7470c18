#include "vmm/c/internal/handle.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace vmm::c {

namespace {

constexpr std::pair<HandleType, absl::string_view> kNames[] = {
    {HandleType::kDriver, "vmmshare_driver"},
    {HandleType::kDevice, "vmmshare_device"},
    {HandleType::kMemory, "vmmshare_memory"},
    {HandleType::kServer, "vmmshare_server"},
    {HandleType::kShare, "vmmshare_share"},
    {HandleType::kChannel, "vmmshare_channel"},
    {HandleType::kPool, "vmmshare_pool"},
    {HandleType::kImportedPool, "vmmshare_imported_pool"},
    {HandleType::kBlock, "vmmshare_block"},
    {HandleType::kFencePool, "vmmshare_fence_pool"},
    {HandleType::kFence, "vmmshare_fence"},
    {HandleType::kKeeper, "vmmshare_keeper"},
    {HandleType::kRingHome, "vmmshare_ring_home"},
    {HandleType::kRing, "vmmshare_ring"},
    {HandleType::kRestorable, "vmmshare_restorable"},
    {HandleType::kRegion, "vmmshare_region"},
    {HandleType::kFenceArray, "vmmshare_fence_array"},
    {HandleType::kWeightsLayout, "vmmshare_weights_layout"},
    {HandleType::kWeightsWriter, "vmmshare_weights_writer"},
    {HandleType::kWeights, "vmmshare_weights"},
    {HandleType::kSafetensors, "vmmshare_safetensors"},
    {HandleType::kFetched, "vmmshare_fetched"},
    {HandleType::kSymmetric, "vmmshare_symmetric"},
};

}  // namespace

absl::string_view NameOf(HandleType type) {
  for (const auto& [each, name] : kNames) {
    if (each == type) return name;
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
      " is the parent's, and this is a forked child. Make what the child needs "
      "in the child, or start it by exec(), as Python's spawn does."));
}

}  // namespace vmm::c
