#include "vmm/c/hooks.h"

#include <cstdint>
#include <list>
#include <memory>
#include <new>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "platform/base/mutex.h"
#include "platform/base/status_macros.h"
#include "platform/os/per_process.h"
#include "vmm/c/internal/call.h"
#include "vmm/c/internal/handles.h"
#include "vmm/c/internal/hook.h"
#include "vmm/memory/internal/device_work.h"
#include "vmm/pool/pool.h"

using vmm::c::Call;
using vmm::c::Check;
using vmm::c::CheckDevice;
using vmm::c::Hook;

namespace {

using vmm::platform::PerProcess;

// The pools from which the hooks of PyTorch take memory, or took some that is
// not free yet. It asks for large pieces, and cuts them itself. Who has a pool last
// unmaps its memory, outside of the lock.
class TorchPools {
 public:
  using Owned = std::shared_ptr<vmm::Pool>;

  // Null: none from now on.
  void Set(std::int32_t device, const Owned& pool) {
    Entries made;
    if (pool != nullptr) made.push_back({.pool = pool, .is_set = true});
    Entries unused;
    {
      const vmm::platform::MutexLock lock(mutex_);
      if (Entry* const set = FindSet(device); set != nullptr) {
        set->is_set = false;
      }
      Entry* const known = pool == nullptr ? nullptr : FindPool(*pool);
      if (known != nullptr) {
        known->is_set = true;
      } else {
        entries_.splice(entries_.end(), made);
      }
      TakeUnused(unused);
    }
  }

  // The pool of the device, from which one block more is taken.
  absl::StatusOr<Owned> Take(std::int32_t device) {
    const vmm::platform::MutexLock lock(mutex_);
    Entry* const set = FindSet(device);
    if (set == nullptr) {
      return absl::FailedPreconditionError(absl::StrCat(
          "no pool is set for device ", device, ". Set one first."));
    }
    ++set->blocks;
    return set->pool;
  }
  // The one from which the block at `base` was taken.
  absl::StatusOr<Owned> Find(std::uint64_t base) {
    const vmm::platform::MutexLock lock(mutex_);
    for (const Entry& entry : entries_) {
      if (entry.blocks != 0 && Holds(*entry.pool, base)) return entry.pool;
    }
    return absl::NotFoundError(absl::StrCat(
        "address ", base,
        " is in no block that a pool of this process gave to PyTorch"));
  }
  // One block less.
  void PutBack(vmm::Pool& pool) {
    Entries unused;
    const vmm::platform::MutexLock lock(mutex_);
    Entry* const entry = FindPool(pool);
    // Gone with blocks that others took of the pool and PyTorch's hook freed.
    if (entry == nullptr || entry->blocks == 0) return;
    --entry->blocks;
    TakeUnused(unused);
  }

 private:
  struct Entry {
    Owned pool;
    std::uint64_t blocks = 0;
    bool is_set = false;  // For its own device.
  };
  // Moved from one to another they need no memory.
  using Entries = std::list<Entry>;

  // What is freed is found also where the host lacks memory, which only another
  // pool asks for, to say why not.
  static bool Holds(vmm::Pool& pool, std::uint64_t base) {
    try {
      return pool.Find(base).ok();
    } catch (const std::bad_alloc&) {
      return false;
    }
  }

  // Null where there is none.
  Entry* FindSet(std::int32_t device) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (Entry& entry : entries_) {
      if (entry.is_set && entry.pool->device().ordinal() == device) {
        return &entry;
      }
    }
    return nullptr;
  }
  Entry* FindPool(const vmm::Pool& pool) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (Entry& entry : entries_) {
      if (entry.pool.get() == &pool) return &entry;
    }
    return nullptr;
  }
  void TakeUnused(Entries& unused) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (auto next = entries_.begin(); next != entries_.end();) {
      const auto entry = next++;
      if (entry->is_set || entry->blocks != 0) continue;
      unused.splice(unused.end(), entries_, entry);
    }
  }

  vmm::platform::Mutex mutex_;
  Entries entries_ ABSL_GUARDED_BY(mutex_);
};

// Never destroyed: PyTorch frees after the end of main().
constinit PerProcess<TorchPools> torch_pools;

}  // namespace

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
    RETURN_IF_ERROR(CheckDevice("pool", pool->pool->device(), device));
    torch_pools.Get().Set(device, pool->pool);
    return absl::OkStatus();
  });
}

void* vmmshare_torch_alloc(size_t size, int device, void* stream) {
  void* pointer = nullptr;
  Hook(torch_pools.IsOfParentAlone(), [&]() -> absl::Status {
    if (size == 0) return absl::OkStatus();
    ASSIGN_OR_RETURN(const auto pool, torch_pools.Get().Take(device));
    absl::Cleanup put_back = [&] { torch_pools.Get().PutBack(*pool); };
    ASSIGN_OR_RETURN(const CUdeviceptr address,
                     pool->Allocate(size, static_cast<CUstream>(stream)));
    std::move(put_back).Cancel();
    pointer = reinterpret_cast<void*>(address);
    return absl::OkStatus();
  });
  return pointer;
}

void vmmshare_torch_free(void* pointer, size_t, int, void*) {
  if (pointer == nullptr) return;
  Hook(torch_pools.IsOfParentAlone(), [&]() -> absl::Status {
    const auto base = reinterpret_cast<std::uint64_t>(pointer);
    ASSIGN_OR_RETURN(const auto pool, torch_pools.Get().Find(base));
    // As PyTorch expects of cudaFree(): `stream` is the one for which it allocated,
    // and a graph that was captured there may run on another.
    RETURN_IF_ERROR(vmm::AwaitDeviceWork(pool->device()));
    RETURN_IF_ERROR(pool->Free(base, vmm::AllStreams()));
    torch_pools.Get().PutBack(*pool);
    return absl::OkStatus();
  });
}

void* vmmshare_cupy_malloc(void* param, size_t size, int device) {
  void* pointer = nullptr;
  Hook(false, [&]() -> absl::Status {
    auto* pool = static_cast<vmmshare_pool*>(param);
    RETURN_IF_ERROR(Check(pool));
    RETURN_IF_ERROR(CheckDevice("pool", pool->pool->device(), device));
    if (size == 0) return absl::OkStatus();
    ASSIGN_OR_RETURN(const CUdeviceptr address,
                     pool->pool->Allocate(size, vmm::AllStreams()));
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
    // As CuPy expects of cudaFree().
    RETURN_IF_ERROR(vmm::AwaitDeviceWork(pool->pool->device()));
    return pool->pool->Free(reinterpret_cast<CUdeviceptr>(pointer),
                            vmm::AllStreams());
  });
}
