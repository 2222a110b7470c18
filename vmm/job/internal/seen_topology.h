// What NVML and the system said of a device, kept for the rest of the process: to
// load NVML and to let go of it takes longer than all else that symmetric memory
// does (some 25 ms of 30, measured on two H100).
#ifndef VMMSHARE_VMM_JOB_INTERNAL_SEEN_TOPOLOGY_H_
#define VMMSHARE_VMM_JOB_INTERNAL_SEEN_TOPOLOGY_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "fabric/diagnosis.h"
#include "fabric/topology.h"
#include "platform/base/mutex.h"

namespace vmm::job {

// Thread-safe.
class SeenTopologies {
 public:
  static SeenTopologies& OfProcess();

  using Read = std::function<fabric::Topology()>;
  // Of the one GPU `uuid`, by `read`, or what that returned once: when the GPU had
  // joined its fabric, or has none. While it is joining, or where nothing is known,
  // `read` is called each time.
  std::shared_ptr<const fabric::Topology> Get(const fabric::Uuid& uuid,
                                              const Read& read);

 private:
  platform::Mutex mutex_;
  std::map<fabric::Uuid, std::shared_ptr<const fabric::Topology>> seen_
      ABSL_GUARDED_BY(mutex_);
};

// Why fabric handles cannot be had of the one GPU of `seen`, with IMEX as it is
// `now`; nothing if `attempt` succeeded. What was mended since then does not help a
// process that has tried before: it remembers the driver's answer (Device::Probe).
// The reason says so.
std::optional<fabric::Finding> WhyNoFabric(
    const fabric::Topology& seen, const fabric::ImexTopology& now,
    const fabric::FabricAttempt& attempt);

}  // namespace vmm::job

#endif  // VMMSHARE_VMM_JOB_INTERNAL_SEEN_TOPOLOGY_H_
