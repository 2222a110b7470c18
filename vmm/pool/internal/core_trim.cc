// Where a pool gives memory back to the driver.
#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "platform/base/status_macros.h"
#include "vmm/pool/internal/core.h"

namespace vmm::pool {

void Core::RemoveVacant() {
  std::vector<std::unique_ptr<Range>> vacant;
  for (const std::unique_ptr<Heap>& heap : heaps_) {
    for (std::unique_ptr<Range>& range : heap->RemoveVacant()) {
      vacant.push_back(std::move(range));
    }
  }
  if (vacant.empty()) return;
  const Unlocked unlocked(*this);
  vacant.clear();
}

bool Core::MustOutlivePeers(const Segment& segment) const {
  return segment.allocation.has_value() &&
         segment.allocation->disclosed().size != 0 &&
         domains_[segment.domain]->has_peers();
}

std::vector<Segment*> Core::Idle() const {
  std::vector<Segment*> idle;
  for (const std::unique_ptr<Heap>& heap : heaps_) {
    for (const std::unique_ptr<Range>& range : heap->ranges()) {
      for (Segment* const segment : range->Idle()) {
        if (!MustOutlivePeers(*segment)) idle.push_back(segment);
      }
    }
  }
  return idle;
}

std::vector<Segment*> Core::Surplus(
    std::uint64_t keep_bytes, absl::Span<const std::uint64_t> least) const {
  std::vector<Segment*> idle = Idle();
  // The smaller ones serve more requests, and each takes as long to make.
  std::stable_sort(
      idle.begin(), idle.end(),
      [](const Segment* a, const Segment* b) { return a->size < b->size; });
  std::uint64_t kept = 0;
  std::vector<std::uint64_t> kept_in(heaps_.size());
  std::erase_if(idle, [&](const Segment* segment) {
    std::uint64_t& in = kept_in[segment->domain];
    if (segment->domain >= least.size() || in >= least[segment->domain]) {
      return false;
    }
    in += segment->size;
    kept += segment->size;
    return true;
  });
  std::erase_if(idle, [&](const Segment* segment) {
    if (kept + segment->size > keep_bytes) return false;
    kept += segment->size;
    return true;
  });
  return idle;
}

std::uint64_t Core::ReleaseIdle(std::uint64_t keep_bytes,
                                absl::Span<const std::uint64_t> least) {
  const std::vector<Segment*> surplus = Surplus(keep_bytes, least);
  if (surplus.empty()) return 0;
  std::uint64_t released = 0;
  struct Gone {
    Range* range;
    Claim claim;
    std::unique_ptr<Segment> segment;
  };
  std::vector<Gone> gone;
  gone.reserve(surplus.size());
  ++releasing_;
  absl::Cleanup note = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (Gone& one : gone) {
      one.segment.reset();  // Where telling of it failed.
      one.range->Vacate(one.claim);
    }
    reserved_ -= released;
    given_back_ += released;
    --releasing_;
    changed_.NotifyAll();
  };
  for (Segment* const segment : surplus) {
    Range* const range = segment->range;
    std::unique_ptr<Segment> removed;
    const std::optional<Claim> claim = range->Remove(*segment, &removed);
    if (!claim.has_value()) continue;
    gone.push_back({range, *claim, std::move(removed)});
    released += segment->size;
    domains_[segment->domain]->Forget(segment->number, &last_error_);
  }
  {
    const Unlocked unlocked(*this);
    for (Gone& one : gone) one.segment.reset();
  }
  std::move(note).Invoke();
  RemoveVacant();
  return released;
}

void Core::GiveUpIdle() {
  const platform::MutexLock lock(mutex_);
  if (closed_) return;
  ++visitors_;
  const absl::Cleanup leave = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    --visitors_;
    changed_.NotifyAll();
  };
  CollectAll().IgnoreError();  // Told in last_error_.
  ReleaseIdle(0, keep_idle_);
  // Nor has the device what others are giving back before they have. They wait
  // for the driver alone.
  while (releasing_ != 0) changed_.Wait(mutex_);
}

absl::StatusOr<std::uint64_t> Core::Trim(std::uint64_t keep_bytes) {
  const platform::MutexLock lock(mutex_);
  std::fill(keep_idle_.begin(), keep_idle_.end(), 0);
  // As CollectAll(), but peers that have ended are forgotten though nothing is
  // held: see MustOutlivePeers().
  EmptyCaches();
  CollectHeld();
  AskAll().IgnoreError();  // Told in last_error_.
  return ReleaseIdle(keep_bytes);
}

}  // namespace vmm::pool
