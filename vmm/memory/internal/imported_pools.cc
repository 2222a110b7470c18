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

// What the driver answered to which of its calls. The words of an error take memory,
// so they are made when nobody waits for a turn to end.
enum class PoolCall { kImportPool, kSetAccess, kImportPointer };
struct PoolAnswer {
  CUresult result;
  PoolCall call;
};

PoolAnswer ImportPool(const Driver& driver, const StreamPoolHandle& handle,
                      CUmemoryPool* pool) {
  return {driver->cuMemPoolImportFromShareableHandle(
              pool, reinterpret_cast<void*>(handle.pool.get()),
              platform::kMemoryHandleKind.type, 0),
          PoolCall::kImportPool};
}

PoolAnswer OpenIn(CUmemoryPool pool, const Device& device, const Device& owner,
                  const StreamPoolHandle& handle, CUdeviceptr* address) {
  const Driver& driver = device.driver();
  if (device != owner) {
    CUmemAccessDesc access{};
    access.location = Location::On(device).ToCuda();
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    if (CUresult r = driver->cuMemPoolSetAccess(pool, &access, 1);
        r != CUDA_SUCCESS) {
      return {r, PoolCall::kSetAccess};
    }
  }
  CUmemPoolPtrExportData data;
  std::memcpy(&data, handle.pointer.data(), sizeof(data));
  return {driver->cuMemPoolImportPointer(address, pool, &data),
          PoolCall::kImportPointer};
}

absl::Status PoolErrorOf(const Device& device, const PoolAnswer& answer) {
  const Driver& driver = device.driver();
  switch (answer.call) {
    case PoolCall::kImportPool:
      return driver.Error(answer.result, "cuMemPoolImportFromShareableHandle()",
                          kOpenAdvice);
    case PoolCall::kSetAccess:
      return driver.Error(answer.result,
                          absl::StrCat("cuMemPoolSetAccess(imported pool, ",
                                       device.Describe(), ")"));
    case PoolCall::kImportPointer:
      break;
  }
  return driver.Error(answer.result, "cuMemPoolImportPointer()", kOpenAdvice);
}

// An entry of a map without a key, to be inserted where there may be no memory.
template <typename Map, typename... Value>
typename Map::node_type EntryOf(const Value&... value) {
  Map map;
  map.try_emplace(typename Map::key_type(), value...);
  return map.extract(map.begin());
}

}  // namespace

ImportedPools& ImportedPools::Get() {
  static auto* const pools = new ImportedPools;
  return *pools;
}

void ImportedPools::AwaitTurn(const Pools::key_type& pool) {
  for (;;) {
    const auto found = pools_.find(pool);
    if (found == pools_.end() || !found->second.taken) return;
    changed_.Wait(mutex_);
  }
}

CUresult ImportedPools::EndTurn(Pool& pool) {
  pool.taken = false;
  changed_.NotifyAll();
  return DestroyIdle();
}

CUresult ImportedPools::DestroyIdle() {
  if (opening_ != 0 || destroying_) return CUDA_SUCCESS;
  CUresult destroyed = CUDA_SUCCESS;
  destroying_ = true;
  for (;;) {
    const auto found =
        std::find_if(pools_.begin(), pools_.end(),
                     [](const auto& one) { return one.second.IsIdle(); });
    if (found == pools_.end()) break;
    const Pools::node_type idle = pools_.extract(found);
    mutex_.Unlock();
    const CUresult r =
        idle.mapped().driver->cuMemPoolDestroy(idle.key().second);
    mutex_.Lock();
    // So it refuses where somebody else in the process has pointers of it open.
    if (r != CUDA_ERROR_INVALID_VALUE && destroyed == CUDA_SUCCESS) {
      destroyed = r;
    }
  }
  destroying_ = false;
  changed_.NotifyAll();
  return destroyed;
}

absl::StatusOr<CUdeviceptr> ImportedPools::Open(
    const Device& device, const Device& owner, const StreamPoolHandle& handle) {
  const Driver& driver = device.driver();
  const Entry entry = driver->cuMemPoolImportPointer;
  // First: what is refused memory later would leave a turn that nobody ends.
  Pools::node_type new_pool = EntryOf<Pools>(driver);
  Pointers::node_type new_pointer = EntryOf<Pointers>();
  platform::MutexLock lock(mutex_);
  while (destroying_) changed_.Wait(mutex_);
  ++opening_;
  lock.Unlock();
  CUmemoryPool imported = nullptr;
  PoolAnswer answer = ImportPool(driver, handle, &imported);
  lock.Lock();
  if (answer.result != CUDA_SUCCESS) {
    --opening_;
    DestroyIdle();  // The other error matters.
    return PoolErrorOf(device, answer);
  }
  new_pool.key() = {entry, imported};
  AwaitTurn(new_pool.key());
  Pool& pool = pools_.insert(std::move(new_pool)).position->second;
  pool.taken = true;
  lock.Unlock();
  CUdeviceptr address = 0;
  answer = OpenIn(imported, device, owner, handle, &address);
  lock.Lock();
  if (answer.result == CUDA_SUCCESS) {
    new_pointer.key() = {entry, address};
    Pointer& pointer =
        pointers_.insert(std::move(new_pointer)).position->second;
    pointer.pool = imported;
    if (++pointer.count == 1) ++pool.pointers;
  }
  --opening_;
  EndTurn(pool);  // `answer` matters.
  if (answer.result != CUDA_SUCCESS) return PoolErrorOf(device, answer);
  return address;
}

absl::Status ImportedPools::Close(const Driver& driver, CUdeviceptr address) {
  const Pointers::key_type key(driver->cuMemPoolImportPointer, address);
  platform::MutexLock lock(mutex_);
  auto found = pointers_.find(key);
  if (found == pointers_.end()) return absl::OkStatus();
  const Pools::key_type pool_key(key.first, found->second.pool);
  AwaitTurn(pool_key);
  found = pointers_.find(key);
  platform::Check(found != pointers_.end(),
                  "a pointer of an imported pool is closed once too often");
  Pool& pool = pools_.find(pool_key)->second;
  pool.taken = true;
  CUresult freed = CUDA_SUCCESS;
  if (--found->second.count == 0) {
    pointers_.erase(found);
    --pool.pointers;
    lock.Unlock();
    freed = driver->cuMemFree(address);
    lock.Lock();
  }
  const CUresult destroyed = EndTurn(pool);
  // Words take memory, in a destructor.
  if (freed != CUDA_SUCCESS) {
    return driver.Error(freed,
                        absl::StrCat("cuMemFree(address=0x", absl::Hex(address),
                                     ") of an imported pool"));
  }
  return driver.Error(destroyed, "cuMemPoolDestroy(imported pool)");
}

}  // namespace vmm
