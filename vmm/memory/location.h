// Location and AccessGrant: where memory lives, and who may touch it.
#ifndef VMMSHARE_VMM_MEMORY_LOCATION_H_
#define VMMSHARE_VMM_MEMORY_LOCATION_H_

#include <cuda.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "vmm/memory/device.h"

namespace vmm {

// A device, or a NUMA node of the host. A value.
class Location {
 public:
  static Location On(Device device) { return Location(std::move(device), 0); }
  static Location HostNuma(int node) { return Location(std::nullopt, node); }

  bool is_host() const { return !device_.has_value(); }
  // REQUIRES: !is_host().
  const Device& device() const { return *device_; }
  // REQUIRES: is_host().
  int numa_node() const { return node_; }

  CUmemLocation ToCuda() const;
  std::string Describe() const;
  friend bool operator==(const Location& a, const Location& b) = default;

 private:
  Location(std::optional<Device> device, int node)
      : device_(std::move(device)), node_(node) {}

  std::optional<Device> device_;
  int node_;
};

// Where memory is, as its properties tell. Nothing of a device that this
// process does not see.
struct Place {
  std::optional<int> host_numa_node;
  std::optional<int> device_ordinal;
  std::string unknown;  // Why nothing can be said, if so.
};

Place PlaceOf(const CUmemLocation& location);

enum class Access { kNone = 0, kRead = 1, kReadWrite = 3 };

// `who` may access memory in this way. Only host memory can be granted to the
// host (the driver returns NOT_SUPPORTED for device memory, measured).
struct AccessGrant {
  Location who;
  Access access = Access::kReadWrite;
};

// OK when every device of `grants` can reach memory at `where`; otherwise
// FAILED_PRECONDITION with the pair that cannot. Checked before the driver is
// asked, because a kernel that touches memory without peer access hangs or
// kills its context.
absl::Status CheckReachable(const Location& where,
                            absl::Span<const AccessGrant> grants);

}  // namespace vmm

#endif  // VMMSHARE_VMM_MEMORY_LOCATION_H_
