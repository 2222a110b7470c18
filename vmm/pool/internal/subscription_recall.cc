// Blocks that the owner wants back, and who is told of it.
#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "vmm/pool/internal/subscription.h"

namespace vmm::pool {

absl::Status Subscription::TakeRecall(const RecallBlocks& recall) {
  const absl::Time return_by = absl::Now() + recall.within;
  std::vector<RecalledBlock> told;
  {
    platform::MutexLock lock(mutex_);
    std::erase_if(recalled_,
                  [this](const auto& one)
                      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                        return !table_->Holds(one.first, one.second.generation);
                      });
    for (const RecalledSlot& wanted : recall.blocks) {
      // What was given back meanwhile, the owner finds out by itself.
      if (!table_->Holds(wanted.slot, wanted.generation)) continue;
      const auto found = segments_.find(wanted.segment);
      if (found == segments_.end() || !found->second.memory.ok()) continue;
      const Segment& segment = found->second;
      const std::uint64_t room =
          std::max(segment.size, segment.place.size - segment.place.offset);
      if (wanted.offset > segment.size || wanted.size > room - wanted.offset) {
        return absl::DataLossError(absl::StrCat(
            "the pool's owner broke the protocol: it wants ", wanted.size,
            " bytes at ", wanted.offset, " of segment ", wanted.segment,
            " back, which has ", segment.size));
      }
      const RecalledBlock block{segment.memory->address() + wanted.offset,
                                wanted.size, return_by};
      recalled_[wanted.slot] = {wanted.generation, block};
      told.push_back(block);
    }
  }
  const platform::MutexLock lock(watch_mutex_);
  TellRecalled(told);
  return absl::OkStatus();
}

void Subscription::TellRecalled(absl::Span<const RecalledBlock> blocks) {
  if (!blocks.empty() && watch_.recalled != nullptr) watch_.recalled(blocks);
}

std::vector<RecalledBlock> Subscription::Recalled() const {
  std::vector<RecalledBlock> blocks;
  platform::MutexLock lock(mutex_);
  for (const auto& [slot, recalled] : recalled_) {
    if (table_->Holds(slot, recalled.generation)) {
      blocks.push_back(recalled.block);
    }
  }
  return blocks;
}

void Subscription::Watch(ImportedPoolWatch watch) {
  platform::MutexLock lock(watch_mutex_);
  watch_ = std::move(watch);
  TellRecalled(Recalled());
  const absl::Status why = connection();
  if (!why.ok() && watch_.disconnected != nullptr) watch_.disconnected(why);
}

}  // namespace vmm::pool
