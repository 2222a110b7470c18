#include "fabric/driver_fabric.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"

namespace vmm::fabric {
namespace {

using platform::CliqueInfo;
using platform::Driver;
using platform::DriverTable;

constexpr int kUnicastPointer = 0;  // Of CUcliqueType.
// More than NVML has room for by far; the number is the driver's word.
constexpr std::size_t kMaxCliques = 4096;

absl::StatusOr<std::vector<CliqueInfo>> CliquesOf(const Driver& driver,
                                                  CUdevice device) {
  std::size_t count = 0;
  if (CUresult r = driver->cuDeviceGetCliqueCount(&count, device);
      r != CUDA_SUCCESS) {
    return driver.Error(r,
                        absl::StrCat("cuDeviceGetCliqueCount(", device, ")"));
  }
  if (count > kMaxCliques) {
    return absl::InternalError(absl::StrCat(
        "cuDeviceGetCliqueCount(", device, ") answered ", count,
        " cliques, which no device has; expected at most ", kMaxCliques));
  }
  std::vector<CliqueInfo> cliques(count);
  if (count == 0) return cliques;
  if (CUresult r =
          driver->cuDeviceGetCliqueInfo(cliques.data(), &count, device);
      r != CUDA_SUCCESS) {
    return driver.Error(r, absl::StrCat("cuDeviceGetCliqueInfo(", device, ")"));
  }
  cliques.resize(std::min(count, cliques.size()));
  return cliques;
}

}  // namespace

absl::StatusOr<FabricInfo> FabricOfDriver(const Driver& driver,
                                          CUdevice device) {
  RETURN_IF_ERROR(driver.Need<&DriverTable::cuDeviceGetFabricClusterUuid>());
  RETURN_IF_ERROR(driver.Need<&DriverTable::cuDeviceGetCliqueCount>());
  RETURN_IF_ERROR(driver.Need<&DriverTable::cuDeviceGetCliqueInfo>());
  CUuuid cluster{};
  if (CUresult r = driver->cuDeviceGetFabricClusterUuid(&cluster, device);
      r != CUDA_SUCCESS) {
    return driver.Error(
        r, absl::StrCat("cuDeviceGetFabricClusterUuid(", device, ")"));
  }
  ASSIGN_OR_RETURN(const std::vector<CliqueInfo> cliques,
                   CliquesOf(driver, device));
  const auto found = std::find_if(
      cliques.begin(), cliques.end(),
      [](const CliqueInfo& one) { return one.type == kUnicastPointer; });
  if (found == cliques.end()) {
    return absl::NotFoundError(absl::StrCat(
        "cuDeviceGetCliqueInfo(", device, ") names ", cliques.size(),
        " cliques, and none of unicast pointers: the device has joined no "
        "fabric"));
  }
  FabricInfo info;
  info.of_driver = true;
  info.state = FabricState::kCompleted;
  static_assert(sizeof(cluster.bytes) == sizeof(info.cluster));
  std::memcpy(info.cluster.data(), cluster.bytes, sizeof(cluster.bytes));
  info.clique = found->id;
  return info;
}

}  // namespace vmm::fabric
