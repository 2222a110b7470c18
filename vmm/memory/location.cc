#include "vmm/memory/location.h"

#include "absl/strings/str_cat.h"

namespace vmm {

CUmemLocation Location::ToCuda() const {
  CUmemLocation location{};
  location.type =
      is_host() ? CU_MEM_LOCATION_TYPE_HOST_NUMA : CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = is_host() ? node_ : device_->cuda_device();
  return location;
}

std::string Location::Describe() const {
  return is_host() ? absl::StrCat("host NUMA node ", node_)
                   : device_->Describe();
}

absl::Status CheckReachable(const Location& where,
                            absl::Span<const AccessGrant> grants) {
  for (const AccessGrant& grant : grants) {
    if (grant.access == Access::kNone || where.is_host()) continue;
    if (grant.who.is_host()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "the CPU cannot be granted access to memory of ", where.Describe(),
          ". Copy it, or allocate on a host NUMA node."));
    }
    absl::StatusOr<bool> can = grant.who.device().CanAccess(where.device());
    if (!can.ok()) return can.status();
    if (!*can) {
      return absl::FailedPreconditionError(absl::StrCat(
          grant.who.Describe(), " has no peer access to ", where.Describe(),
          ". Check `nvidia-smi topo -p2p rw`: MIG instances, virtual GPUs and "
          "some boards have none."));
    }
  }
  return absl::OkStatus();
}

}  // namespace vmm
