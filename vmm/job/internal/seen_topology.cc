#include "vmm/job/internal/seen_topology.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace vmm::job {
namespace {

using fabric::FabricState;
using fabric::Finding;
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

std::optional<Finding> WhyNoFabric(const Topology& seen,
                                   const fabric::ImexTopology& now,
                                   const fabric::FabricAttempt& attempt) {
  Topology today = seen;
  today.imex = now;
  const std::vector<Finding> before =
      fabric::WhyNotFabric(seen, seen.gpus.front(), attempt);
  const std::vector<Finding> left =
      fabric::WhyNotFabric(today, today.gpus.front(), attempt);
  if (left.empty() || before.empty()) return std::nullopt;
  Finding why = left.front();
  if (why.id == before.front().id) return why;
  if (why.id == "domain-not-ready") {
    // Nothing to mend is left, and it is not the domain that refused.
    return Finding{
        before.front().id,
        absl::StrCat("when this process first looked: ", before.front().text),
        "It looks mended now. This process remembers what the "
        "driver answered then: start it anew."};
  }
  absl::StrAppend(&why.remedy,
                  " Then start this process anew: it remembers what the driver "
                  "answered.");
  return why;
}

}  // namespace vmm::job
