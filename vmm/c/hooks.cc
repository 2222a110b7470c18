#include "vmm/c/hooks.h"

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/mutex.h"
#include "platform/base/status_macros.h"
#include "platform/os/per_process.h"
#include "platform/os/process.h"
#include "vmm/c/internal/call.h"
#include "vmm/c/internal/handles.h"
#include "vmm/c/internal/hook.h"

using vmm::c::Call;
using vmm::c::Check;
using vmm::c::Hook;

namespace {

using vmm::platform::PerProcess;

// The pools from which the hooks of PyTorch take memory, or took some that is
// not free yet. It asks for large pieces, and cuts them itself.
class TorchPools {
 public:
  void Set(std::int32_t device, std::shared_ptr<vmm::Pool> pool) {
    const vmm::platform::MutexLock lock(mutex_);
    set_[device] = std::move(pool);
  }

  // The pool of the device, from which one block more is taken.
  absl::StatusOr<std::shared_ptr<vmm::Pool>> Take(std::int32_t device) {
    const vmm::platform::MutexLock lock(mutex_);
    const auto found = set_.find(device);
    if (found == set_.end() || found->second == nullptr) {
      return absl::FailedPreconditionError(absl::StrCat(
          "no pool is set for device ", device, ". Set one first."));
    }
    ++blocks_[found->second];
    return found->second;
  }
  // The one from which the block at `base` was taken.
  absl::StatusOr<std::shared_ptr<vmm::Pool>> Find(std::uint64_t base) {
    const vmm::platform::MutexLock lock(mutex_);
    for (const auto& [pool, blocks] : blocks_) {
      if (pool->Find(base).ok()) return pool;
    }
    return absl::NotFoundError(absl::StrCat(
        "address ", base,
        " is in no block that a pool of this process gave to PyTorch"));
  }
  // One block less.
  void PutBack(const std::shared_ptr<vmm::Pool>& pool) {
    const vmm::platform::MutexLock lock(mutex_);
    const auto found = blocks_.find(pool);
    if (--found->second == 0) blocks_.erase(found);
  }

 private:
  vmm::platform::Mutex mutex_;
  std::map<std::int32_t, std::shared_ptr<vmm::Pool>> set_
      ABSL_GUARDED_BY(mutex_);
  std::map<std::shared_ptr<vmm::Pool>, std::uint64_t> blocks_
      ABSL_GUARDED_BY(mutex_);
};

class LastFailure {
 public:
  void Remember(const absl::Status& failure) {
    const vmm::platform::MutexLock lock(mutex_);
    failure_ = failure;
  }
  absl::Status Take() {
    const vmm::platform::MutexLock lock(mutex_);
    return std::exchange(failure_, absl::OkStatus());
  }

 private:
  vmm::platform::Mutex mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
};

// Never destroyed: PyTorch frees after the end of main().
constinit PerProcess<TorchPools> torch_pools;
constinit PerProcess<LastFailure> last_failure;

// The ForksSoFar() of the forked child in which a hook was refused last, which is
// above 0.
constinit std::atomic<std::uint64_t> refused_in{0};

absl::Status CheckDevice(const vmm::Pool& pool, std::int32_t device) {
  if (pool.device().ordinal() == device) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the pool is of ", pool.device().Describe(), " and not of device ",
      device, ". Give the pool's own device, or a pool of the other one."));
}

}  // namespace

void vmm::c::Hook(bool is_of_parent_alone,
                  absl::FunctionRef<absl::Status()> body) {
  // A thread of the parent's may have held any lock, the allocator's too, when it
  // forked.
  if (is_of_parent_alone) return refused_in.store(platform::ForksSoFar());
  Call(nullptr, [&]() -> absl::Status {
    absl::Status status = body();
    if (!status.ok()) last_failure.Get().Remember(status);
    return status;
  });
}

vmmshare_status vmmshare_torch_set_pool(std::int32_t device,
                                        vmmshare_pool* pool,
                                        vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    if (pool == nullptr) {
      TorchPools* const pools = torch_pools.Find();
      if (pools != nullptr) pools->Set(device, nullptr);
      return absl::OkStatus();
    }
    RETURN_IF_ERROR(Check(pool));
    RETURN_IF_ERROR(CheckDevice(*pool->pool, device));
    torch_pools.Get().Set(device, pool->pool);
    return absl::OkStatus();
  });
}

void* vmmshare_torch_alloc(size_t size, int device, void* stream) {
  void* pointer = nullptr;
  Hook(torch_pools.IsOfParentAlone(), [&]() -> absl::Status {
    if (size == 0) return absl::OkStatus();
    ASSIGN_OR_RETURN(const auto pool, torch_pools.Get().Take(device));
    const absl::StatusOr<CUdeviceptr> address =
        pool->Allocate(size, static_cast<CUstream>(stream));
    if (!address.ok()) {
      torch_pools.Get().PutBack(pool);
      return address.status();
    }
    pointer = reinterpret_cast<void*>(*address);
    return absl::OkStatus();
  });
  return pointer;
}

void vmmshare_torch_free(void* pointer, size_t, int, void* stream) {
  if (pointer == nullptr) return;
  Hook(torch_pools.IsOfParentAlone(), [&]() -> absl::Status {
    const auto base = reinterpret_cast<std::uint64_t>(pointer);
    ASSIGN_OR_RETURN(const auto pool, torch_pools.Get().Find(base));
    RETURN_IF_ERROR(pool->Free(base, static_cast<CUstream>(stream)));
    torch_pools.Get().PutBack(pool);
    return absl::OkStatus();
  });
}

void* vmmshare_cupy_malloc(void* param, size_t size, int device) {
  void* pointer = nullptr;
  Hook(false, [&]() -> absl::Status {
    auto* pool = static_cast<vmmshare_pool*>(param);
    RETURN_IF_ERROR(Check(pool));
    RETURN_IF_ERROR(CheckDevice(*pool->pool, device));
    if (size == 0) return absl::OkStatus();
    ASSIGN_OR_RETURN(const CUdeviceptr address,
                     pool->pool->Allocate(size, CU_STREAM_LEGACY));
    pointer = reinterpret_cast<void*>(address);
    return absl::OkStatus();
  });
  return pointer;
}

void vmmshare_cupy_free(void* param, void* pointer, int) {
  if (pointer == nullptr) return;
  Hook(false, [&]() -> absl::Status {
    auto* pool = static_cast<vmmshare_pool*>(param);
    RETURN_IF_ERROR(Check(pool));
    return pool->pool->FreeAfterAll(reinterpret_cast<CUdeviceptr>(pointer));
  });
}

vmmshare_status vmmshare_hooks_last_error(vmmshare_error** error) {
  return Call(error, []() -> absl::Status {
    const std::uint64_t forks = refused_in.exchange(0);
    if (forks != 0 && forks == vmm::platform::ForksSoFar()) {
      return absl::FailedPreconditionError(
          "the parent's GPU memory cannot be used in a forked child. Start the "
          "process by exec(), as multiprocessing's spawn does.");
    }
    LastFailure* const own = last_failure.Find();
    return own == nullptr ? absl::OkStatus() : own->Take();
  });
}
