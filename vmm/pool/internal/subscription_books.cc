// What a subscription says of what it has.
#include <string>
#include <vector>

#include "vmm/memory/driver_block.h"
#include "vmm/pool/internal/subscription.h"

namespace vmm::pool {

absl::Status Subscription::connection() const {
  platform::MutexLock lock(mutex_);
  return connection_;
}

ImportedPoolStatistics Subscription::statistics() const {
  platform::MutexLock lock(mutex_);
  ImportedPoolStatistics all;
  for (const auto& [number, segment] : segments_) {
    if (!segment.memory.ok()) continue;
    ++all.segments;
    all.mapped += segment.memory->size();
  }
  for (const auto& [number, segment] : kept_) {
    ++all.segments;
    all.mapped += segment.memory->size();
  }
  all.imported = imported_;
  for (const Batch& batch : releasing_) all.releasing += batch.places.size();
  all.last_error = last_error_;
  return all;
}

std::string Subscription::weakness() const {
  HandleKind kind = HandleKind::kLegacyIpc;
  std::vector<AddressSpan> disclosed;
  const auto count = [&](const Segment& segment) {
    if (!segment.memory.ok() || segment.memory->disclosed().size == 0) return;
    kind = segment.memory->ticket().kind;
    disclosed.push_back(segment.memory->disclosed());
  };
  {
    const platform::MutexLock lock(mutex_);
    for (const auto& [number, segment] : segments_) count(segment);
    for (const auto& [number, segment] : kept_) count(segment);
  }
  return DescribeWeakness(kind, disclosed);
}

}  // namespace vmm::pool
