#include "vmm/memory/internal/imported_pools.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "platform/base/check.h"
#include "platform/cuda/memory_handle.h"
#include "vmm/memory/device.h"

namespace vmm {
namespace {

using platform::Driver;

absl::StatusOr<CUmemoryPool> ImportPool(const Driver& driver,
                                        const StreamPoolHandle& handle) {
  CUmemoryPool pool = nullptr;
  if (CUresult r = driver->cuMemPoolImportFromShareableHandle(
          &pool, reinterpret_cast<void*>(handle.pool.get()),
          platform::kMemoryHandleKind.type, 0);
      r != CUDA_SUCCESS) {
    return driver.Error(r, "cuMemPoolImportFromShareableHandle()", kOpenAdvice);
  }
  return pool;
}

absl::StatusOr<CUdeviceptr> OpenIn(CUmemoryPool pool, const Device& device,
                                   const Device& owner,
                                   const StreamPoolHandle& handle) {
  const Driver& driver = device.driver();
  if (device != owner) {
    CUmemAccessDesc access{};
    access.location = Location::On(device).ToCuda();
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    if (CUresult r = driver->cuMemPoolSetAccess(pool, &access, 1);
        r != CUDA_SUCCESS) {
      return driver.Error(r, absl::StrCat("cuMemPoolSetAccess(imported pool, ",
                                          device.Describe(), ")"));
    }
  }
  CUmemPoolPtrExportData data;
  std::memcpy(&data, handle.pointer.data(), sizeof(data));
  CUdeviceptr address = 0;
  if (CUresult r = driver->cuMemPoolImportPointer(&address, pool, &data);
      r != CUDA_SUCCESS) {
    return driver.Error(r, "cuMemPoolImportPointer()", kOpenAdvice);
  }
  return address;
}

// The driver refuses where somebody else in the process has pointers of it open.
absl::Status Destroy(const Driver& driver, CUmemoryPool pool) {
  const CUresult r = driver->cuMemPoolDestroy(pool);
  return r == CUDA_ERROR_INVALID_VALUE
             ? absl::OkStatus()
             : driver.Error(r, "cuMemPoolDestroy(imported pool)");
}

}  // namespace

ImportedPools& ImportedPools::Get() {
  static auto* const pools = new ImportedPools;
  return *pools;
}

bool ImportedPools::HasPointers(const Pool& pool) const {
  return std::any_of(pointers_.begin(), pointers_.end(), [&](const auto& one) {
    return Pool(one.first.first, one.second.pool) == pool;
  });
}

void ImportedPools::AwaitTurn(const Pool& pool) {
  while (taken_.count(pool) != 0) changed_.Wait(mutex_);
  taken_.insert(pool);
}

absl::Status ImportedPools::EndTurn(const Driver& driver, const Pool& pool) {
  taken_.erase(pool);
  if (!HasPointers(pool)) idle_.insert_or_assign(pool, driver);
  changed_.NotifyAll();
  return DestroyIdle();
}

absl::Status ImportedPools::DestroyIdle() {
  if (opening_ != 0 || destroying_) return absl::OkStatus();
  absl::Status destroyed;
  destroying_ = true;
  while (!idle_.empty()) {
    const auto idle = idle_.extract(idle_.begin());
    const Pool& pool = idle.key();
    // In use again; or somebody has its turn, at whose end it comes here again.
    if (HasPointers(pool) || taken_.count(pool) != 0) continue;
    mutex_.Unlock();
    destroyed.Update(Destroy(idle.mapped(), pool.second));
    mutex_.Lock();
  }
  destroying_ = false;
  changed_.NotifyAll();
  return destroyed;
}

absl::StatusOr<CUdeviceptr> ImportedPools::Open(
    const Device& device, const Device& owner, const StreamPoolHandle& handle) {
  const Driver& driver = device.driver();
  platform::MutexLock lock(mutex_);
  while (destroying_) changed_.Wait(mutex_);
  ++opening_;
  lock.Unlock();
  const absl::StatusOr<CUmemoryPool> imported = ImportPool(driver, handle);
  lock.Lock();
  if (!imported.ok()) {
    --opening_;
    DestroyIdle().IgnoreError();  // The other error matters.
    return imported.status();
  }
  const Pool pool(driver->cuMemPoolImportPointer, *imported);
  AwaitTurn(pool);
  lock.Unlock();
  const absl::StatusOr<CUdeviceptr> address =
      OpenIn(*imported, device, owner, handle);
  lock.Lock();
  if (address.ok()) {
    Pointer& pointer = pointers_[{driver->cuMemPoolImportPointer, *address}];
    pointer.pool = *imported;
    ++pointer.count;
  }
  --opening_;
  EndTurn(driver, pool).IgnoreError();  // `address` matters.
  return address;
}

absl::Status ImportedPools::Close(const Driver& driver, CUdeviceptr address) {
  const std::pair key(driver->cuMemPoolImportPointer, address);
  platform::MutexLock lock(mutex_);
  auto found = pointers_.find(key);
  if (found == pointers_.end()) return absl::OkStatus();
  const Pool pool(driver->cuMemPoolImportPointer, found->second.pool);
  AwaitTurn(pool);
  found = pointers_.find(key);
  platform::Check(found != pointers_.end(),
                  "a pointer of an imported pool is closed once too often");
  absl::Status freed;
  if (--found->second.count == 0) {
    pointers_.erase(found);
    lock.Unlock();
    const CUresult r = driver->cuMemFree(address);
    // Words take memory, in a destructor.
    if (r != CUDA_SUCCESS) {
      freed = driver.Error(
          r, absl::StrCat("cuMemFree(address=0x", absl::Hex(address),
                          ") of an imported pool"));
    }
    lock.Lock();
  }
  freed.Update(EndTurn(driver, pool));
  return freed;
}

}  // namespace vmm
