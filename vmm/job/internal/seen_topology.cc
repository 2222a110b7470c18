#include "vmm/job/internal/seen_topology.h"

#include <utility>

namespace vmm::job {
namespace {

using fabric::FabricState;
using fabric::Topology;

bool IsSettled(const Topology& topology) {
  const auto& info = topology.gpus.front().fabric;
  return info.ok() && (info->state == FabricState::kCompleted ||
                       info->state == FabricState::kNotSupported);
}

}  // namespace

SeenTopologies& SeenTopologies::OfProcess() {
  // Never destroyed: a job may end after main() has.
  static auto* const seen = new SeenTopologies;
  return *seen;
}

std::shared_ptr<const Topology> SeenTopologies::Get(const fabric::Uuid& uuid,
                                                    const Read& read) {
  {
    const platform::MutexLock lock(mutex_);
    const auto found = seen_.find(uuid);
    if (found != seen_.end()) return found->second;
  }
  auto now = std::make_shared<const Topology>(read());
  if (!IsSettled(*now)) return now;
  const platform::MutexLock lock(mutex_);
  return seen_.try_emplace(uuid, std::move(now)).first->second;
}

}  // namespace vmm::job
