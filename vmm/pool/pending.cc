#include "vmm/pool/pending.h"

#include <algorithm>

namespace vmm::pool {

void PendingBlocks::Add(Block* block) {
  bytes_ += block->size;
  auto found = std::find_if(
      fresh_.begin(), fresh_.end(),
      [block](const auto& entry) { return entry.first == block->freed_on; });
  if (found == fresh_.end()) {
    found = fresh_.insert(fresh_.end(), {block->freed_on, BlockList()});
  }
  found->second.Push(block);
}

BlockList PendingBlocks::Collect(absl::Status* error) {
  for (auto fresh = fresh_.begin(); fresh != fresh_.end();) {
    absl::StatusOr<OwnedEvent> point = RecordEvent(driver_, fresh->first);
    if (!point.ok()) {
      *error = point.status();
      ++fresh;
      continue;
    }
    batches_.push_back({*std::move(point), fresh->second});
    fresh = fresh_.erase(fresh);
  }
  BlockList passed;
  // Streams pass their work in any order among each other.
  for (auto batch = batches_.begin(); batch != batches_.end();) {
    absl::StatusOr<bool> has_passed = HasPassed(batch->point);
    if (!has_passed.ok()) *error = has_passed.status();
    if (!has_passed.ok() || !*has_passed) {
      ++batch;
      continue;
    }
    while (!batch->blocks.empty()) {
      Block* const block = batch->blocks.Pop();
      bytes_ -= block->size;
      passed.Push(block);
    }
    batch = batches_.erase(batch);
  }
  return passed;
}

}  // namespace vmm::pool
