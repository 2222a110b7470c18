// PoolsOfProcess: the pools that this process has, so that what one keeps idle
// can serve another when a device has no memory left; internal to vmm/.
#ifndef VMMSHARE_VMM_POOL_INTERNAL_POOLS_OF_PROCESS_H_
#define VMMSHARE_VMM_POOL_INTERNAL_POOLS_OF_PROCESS_H_

#include <cuda.h>

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "platform/base/mutex.h"
#include "vmm/pool/pool.h"

namespace vmm::pool {

class Core;

// Thread-safe. Forgets a pool when it has gone.
class PoolsOfProcess {
 public:
  // Outlives all pools. A forked child has other ones than its parent.
  static PoolsOfProcess& Get();
  // Whether the process from which this one was forked had pools, and this one
  // made none.
  static bool AreOfParentAlone();

  void Add(const std::shared_ptr<Core>& pool);
  // The block around an address, of whichever pool, and its ticket. NOT_FOUND
  // when it is in none; otherwise as Pool::Export().
  absl::StatusOr<ExportedBlock> ExportAround(CUdeviceptr inside);
  // Has all others of the same device give their idle memory back. Calls the
  // driver, and holds no lock meanwhile. Whether there are others.
  bool GiveUpIdle(const Core* but);

 private:
  platform::Mutex mutex_;
  std::vector<std::weak_ptr<Core>> pools_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace vmm::pool

#endif  // VMMSHARE_VMM_POOL_INTERNAL_POOLS_OF_PROCESS_H_
