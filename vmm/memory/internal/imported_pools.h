// ImportedPools: the stream-ordered pools of others of which this process has
// pointers open; internal to vmm/.
//
// The driver has one pool and one pointer for each, however often it is imported;
// gives the same address for a pointer each time, and frees it at the first
// cuMemFree() (measured). So what is done with one pool takes turns. No lock is
// held over a driver call, and other pools do not wait: cuMemFree() may wait for
// the GPU. What is opened is closed without memory of the host, but for the words
// of an error: it is in destructors that it is closed.
#ifndef VMMSHARE_VMM_MEMORY_INTERNAL_IMPORTED_POOLS_H_
#define VMMSHARE_VMM_MEMORY_INTERNAL_IMPORTED_POOLS_H_

#include <cuda.h>

#include <cstdint>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "platform/base/mutex.h"
#include "platform/cuda/driver.h"
#include "platform/cuda/driver_table.h"
#include "vmm/memory/device.h"
#include "vmm/memory/handle_kind.h"

namespace vmm {

// What may be wrong where a handle of another process's memory cannot be opened:
// what the driver answers does not tell (measured: a handle of nothing is
// INVALID_VALUE, MAP_FAILED or NOT_PERMITTED).
inline constexpr char kOpenAdvice[] =
    "The owner has freed it or ended, shares no IPC and PID namespace with "
    "this process, or is another user.";

// Thread-safe.
class ImportedPools {
 public:
  // Never destroyed: memory may go after the end of main().
  static ImportedPools& Get();

  // Each success needs one Close().
  absl::StatusOr<CUdeviceptr> Open(const Device& device, const Device& owner,
                                   const StreamPoolHandle& handle)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Close(const platform::Driver& driver, CUdeviceptr address)
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // Which driver, however often it was loaded: it has its pools once.
  using Entry = decltype(platform::DriverTable::cuMemPoolImportPointer);
  struct Pool {
    explicit Pool(platform::Driver its) : driver(std::move(its)) {}
    // Without a pointer, to be destroyed.
    bool IsIdle() const { return pointers == 0 && !taken; }

    platform::Driver driver;
    std::uint64_t pointers = 0;
    bool taken = false;  // Somebody has its turn.
  };
  struct Pointer {
    CUmemoryPool pool = nullptr;
    std::uint64_t count = 0;
  };
  using Pools = std::map<std::pair<Entry, CUmemoryPool>, Pool>;
  using Pointers = std::map<std::pair<Entry, CUdeviceptr>, Pointer>;

  void AwaitTurn(const Pools::key_type& pool)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Destroys what is idle, unless somebody may be about to use it. Unlocked
  // while the driver is at it. Its first error.
  CUresult EndTurn(Pool& pool) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  CUresult DestroyIdle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  platform::Mutex mutex_;
  platform::CondVar changed_;
  Pools pools_ ABSL_GUARDED_BY(mutex_);
  Pointers pointers_ ABSL_GUARDED_BY(mutex_);
  // Calls of Open() that have, or may have, a pool which nothing here says is in
  // use: none is destroyed meanwhile.
  std::uint64_t opening_ ABSL_GUARDED_BY(mutex_) = 0;
  bool destroying_ ABSL_GUARDED_BY(mutex_) = false;  // None is imported then.
};

}  // namespace vmm

#endif  // VMMSHARE_VMM_MEMORY_INTERNAL_IMPORTED_POOLS_H_
