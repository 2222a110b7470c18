#include "vmm/pool/internal/pools_of_process.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"
#include "platform/os/per_process.h"
#include "vmm/pool/internal/core.h"

namespace vmm::pool {
namespace {

constinit platform::PerProcess<PoolsOfProcess> pools_of_process;

}  // namespace

PoolsOfProcess& PoolsOfProcess::Get() { return pools_of_process.Get(); }

bool PoolsOfProcess::AreOfParentAlone() {
  return pools_of_process.IsOfParentAlone();
}

void PoolsOfProcess::Add(const std::shared_ptr<Core>& pool) {
  const platform::MutexLock lock(mutex_);
  std::erase_if(pools_, [](const auto& old) { return old.expired(); });
  pools_.push_back(pool);
}

absl::StatusOr<ExportedBlock> PoolsOfProcess::ExportAround(CUdeviceptr inside) {
  const platform::MutexLock lock(mutex_);
  for (const std::weak_ptr<Core>& entry : pools_) {
    const std::shared_ptr<Core> pool = entry.lock();
    if (pool == nullptr) continue;
    const std::optional<PoolBlock> block = pool->Find(inside);
    if (!block.has_value()) continue;
    ExportedBlock exported{*block, {}};
    RETURN_IF_ERROR(pool->Export(absl::MakeConstSpan(&block->address, 1),
                                 &exported.ticket));
    return exported;
  }
  return absl::NotFoundError(
      absl::StrCat("0x", absl::Hex(inside),
                   " is in no block of a pool of this process; allocate from a "
                   "pool what is to be shared, copy it into a block, or share "
                   "it by itself: AdoptedMemory, in Python serve_array()"));
}

bool PoolsOfProcess::GiveUpIdle(const Core* but) {
  std::vector<std::shared_ptr<Core>> others;
  {
    const platform::MutexLock lock(mutex_);
    for (const std::weak_ptr<Core>& pool : pools_) {
      std::shared_ptr<Core> other = pool.lock();
      if (other != nullptr && other.get() != but &&
          other->device() == but->device()) {
        others.push_back(std::move(other));
      }
    }
  }
  for (const std::shared_ptr<Core>& other : others) other->GiveUpIdle();
  return !others.empty();
}

}  // namespace vmm::pool
