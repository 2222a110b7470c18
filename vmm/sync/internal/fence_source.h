// Source: what a fence came from and goes back to; internal to vmm/.
#ifndef VMMSHARE_VMM_SYNC_INTERNAL_FENCE_SOURCE_H_
#define VMMSHARE_VMM_SYNC_INTERNAL_FENCE_SOURCE_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "platform/base/abandon.h"
#include "platform/base/mutex.h"
#include "platform/base/status_macros.h"
#include "platform/cuda/driver.h"
#include "platform/os/process.h"
#include "vmm/memory/device.h"
#include "vmm/memory/internal/spare_context.h"
#include "vmm/pool/imported_pool.h"
#include "vmm/sync/internal/fence_memory.h"

namespace vmm::fence {

class FenceKernels;

// OK when streams of `device` can signal and wait in memory; otherwise
// UNIMPLEMENTED. IPC events do not stand in: the message says so.
absl::Status CheckStreamOperations(const Device& device);

// A fence that is to go.
struct Leaving {
  CUdeviceptr at = 0;
  std::uint64_t base = 0;
  std::uint64_t enqueued = 0;  // The highest signal on its way, or past.
  std::optional<ImportedBlock> block;
};

// Thread-safe.
class Source : public platform::Abandonable {
 public:
  // `memory` is the source's own, or lives for ever. `device`, if it is one:
  // whose streams use the fences.
  Source(platform::Driver driver, Memory& memory,
         const std::optional<Device>& device);
  virtual ~Source() = default;

  const platform::Driver& driver() const { return driver_; }
  Memory& memory() const { return memory_; }
  // By which streams wait; null: by their own operations.
  virtual const FenceKernels* kernels() const { return nullptr; }
  // What `put` answers, which puts work on `stream`. Of a default one on a thread
  // without a context it is called again in the device's primary one.
  template <typename Put>
  absl::StatusOr<CUresult> InSomeContext(CUstream stream, const Put& put) {
    const CUresult result = put();
    if (result != CUDA_ERROR_INVALID_CONTEXT || !spare_.has_value()) {
      return result;
    }
    ASSIGN_OR_RETURN(const CurrentContext current, spare_->EnterFor(stream));
    return current.has_value() ? put() : result;
  }
  // Whether this process was forked from the one that made it. No system call.
  bool IsOfAnotherProcess() const { return !made_.is_still_here(); }

  void CountNew() { ++fences_; }
  void Release(Leaving fence);
  std::uint64_t fences() const { return fences_; }

 protected:
  virtual void GiveBack(Leaving fence) = 0;

 private:
  const platform::Driver driver_;
  Memory& memory_;
  const platform::MadeHere made_;
  std::atomic<std::uint64_t> fences_ = 0;
  std::optional<SpareContext> spare_;
};

// A source whose fences are blocks of a pool, in memory of the host. Each goes
// back to the pool once its signals are made.
class PooledSource : public Source {
 public:
  PooledSource(platform::Driver driver, const std::optional<Device>& device);

  // Gives back some of those whose signals are made by now.
  void Collect();
  std::uint64_t waiting() const { return waiting_count_; }

 protected:
  // Gives back what is of the derived class. No signal is on its way.
  virtual void GiveBackNow(Leaving fence) = 0;
  // Drops what waits. For the derived class's destructor.
  void DropWaiting();

 private:
  void GiveBack(Leaving fence) override;

  std::atomic<std::uint64_t> waiting_count_ = 0;
  platform::Mutex mutex_;
  std::deque<Leaving> waiting_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace vmm::fence

#endif  // VMMSHARE_VMM_SYNC_INTERNAL_FENCE_SOURCE_H_
