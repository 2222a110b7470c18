#ifndef VMMSHARE_VMM_JOB_INTERNAL_SEEN_TOPOLOGY_H_
#define VMMSHARE_VMM_JOB_INTERNAL_SEEN_TOPOLOGY_H_

// What NVML and the system said of a device, kept for the rest of the process: to
// load NVML and to let go of it takes longer than all else that symmetric memory
// does (some 25 ms of 30, measured on two H100).
#include <functional>
#include <map>
#include <memory>

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

}  // namespace vmm::job

#endif  // VMMSHARE_VMM_JOB_INTERNAL_SEEN_TOPOLOGY_H_
