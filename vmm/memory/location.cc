#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"
#include "vmm/memory/device.h"

namespace vmm {
namespace {

// Of CUDA 13.2 and 13.4, whose cuda.h names them; drivers are newer than
// headers.
constexpr int kInvisible = 5;
constexpr int kLocalityDomain = 6;

}  // namespace

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
    ASSIGN_OR_RETURN(const bool can,
                     grant.who.device().CanAccess(where.device()));
    if (!can) {
      return absl::FailedPreconditionError(absl::StrCat(
          grant.who.Describe(), " has no peer access to ", where.Describe(),
          ". Check `nvidia-smi topo -p2p rw`: MIG instances, virtual GPUs and "
          "some boards have none."));
    }
  }
  return absl::OkStatus();
}

Place PlaceOf(const CUmemLocation& location) {
  Place place;
  switch (static_cast<int>(location.type)) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      // A hidden device, before 13.2: -2 (measured).
      if (location.id >= 0) place.device_ordinal = location.id;
      break;
    case kLocalityDomain:
      // The device's ordinal is the first byte, its part's number the second.
      place.device_ordinal =
          static_cast<int>(reinterpret_cast<const unsigned char&>(location.id));
      break;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
      place.host_numa_node = location.id;
      break;
    case CU_MEM_LOCATION_TYPE_HOST:
    case kInvisible:
      break;
    default:
      place.unknown = absl::StrCat(
          "The driver says that it is at a location of type ",
          static_cast<int>(location.type),
          ", which this version of vmmshare does not know: use a newer one.");
  }
  return place;
}

}  // namespace vmm
