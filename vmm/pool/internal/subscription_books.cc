// What a subscription says of what it has.
#include <string>
#include <vector>

#include "vmm/memory/driver_block.h"
#include "vmm/pool/internal/subscription.h"

namespace vmm::pool {

template <typename Call>
void Subscription::ForEachMapped(const Call& call) const {
  for (const auto& [number, segment] : segments_) {
    if (segment.memory.ok()) call(*segment.memory);
  }
  for (const auto& [number, segment] : kept_) call(*segment.memory);
}

absl::Status Subscription::connection() const {
  platform::MutexLock lock(mutex_);
  return connection_;
}

ImportedPoolStatistics Subscription::statistics() const {
  platform::MutexLock lock(mutex_);
  ImportedPoolStatistics all;
  ForEachMapped([&all](const ImportedAllocation& memory) {
    ++all.segments;
    all.mapped += memory.size();
  });
  all.imported = imported_;
  for (const Batch& batch : releasing_) all.releasing += batch.places.size();
  all.last_error = last_error_;
  return all;
}

std::string Subscription::weakness() const {
  HandleKind kind = HandleKind::kLegacyIpc;
  std::vector<AddressSpan> disclosed;
  {
    const platform::MutexLock lock(mutex_);
    ForEachMapped([&](const ImportedAllocation& memory) {
      if (memory.disclosed().size == 0) return;
      kind = memory.ticket().kind;
      disclosed.push_back(memory.disclosed());
    });
  }
  return DescribeWeakness(kind, disclosed);
}

}  // namespace vmm::pool
