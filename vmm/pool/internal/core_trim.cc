// Where a pool gives memory back to the driver, and lets go of streams.
#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "platform/base/status_macros.h"
#include "vmm/pool/internal/core.h"

namespace vmm::pool {
namespace {

// Until the GPU has passed what is on `stream` now. `context`, whose default
// streams are meant: as DefaultContext::Enter().
absl::Status AwaitStream(const Device& device, CUcontext context,
                         CUstream stream, Deadline deadline) {
  DefaultContext entered;
  if (IsDefault(stream)) {
    ASSIGN_OR_RETURN(const bool is_used, entered.Enter(device, context));
    if (!is_used) return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const OwnedEvent point,
                   RecordEvent(device.driver(), stream));
  return AwaitPassing(point, deadline);
}

}  // namespace

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

std::uint64_t Core::ReleaseIdle(std::uint64_t keep_bytes,
                                absl::Span<const std::uint64_t> least) {
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
  if (idle.empty()) return 0;
  std::uint64_t released = 0;
  struct Gone {
    Range* range;
    Claim claim;
    std::unique_ptr<Segment> segment;
  };
  std::vector<Gone> gone;
  gone.reserve(idle.size());
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
  for (Segment* const segment : idle) {
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
  EmptyCaches();
  CollectHeld();
  AskAll().IgnoreError();  // Told in last_error_.
  return ReleaseIdle(keep_bytes);
}

absl::Status Core::ReleaseStream(CUstream stream, Deadline deadline) {
  RETURN_IF_ERROR(CheckStream(stream));
  // By domain: of what was freed before now; a point after that is waited for.
  std::vector<std::uint64_t> epochs;
  CUcontext context = nullptr;
  {
    const platform::MutexLock lock(mutex_);
    context = context_;
    EmptyCaches();
    if (!late_.empty()) {
      return absl::ResourceExhaustedError(
          "ReleaseStream(): there is no memory for the books of blocks that "
          "were freed, perhaps on that stream; expected some. Call it again "
          "when there is");
    }
    for (const std::unique_ptr<Heap>& heap : heaps_) {
      epochs.push_back(heap->Close(stream));
    }
    for (Block* held = held_.front(); held != nullptr; held = held->next) {
      if (held->freed_on == stream && held->epoch == 0) {
        held->epoch = epochs[held->domain];
      }
    }
  }
  RETURN_IF_ERROR(AwaitStream(device_, context, stream, deadline));
  std::vector<std::vector<StreamPoint>> points;  // Gone without the lock.
  const platform::MutexLock lock(mutex_);
  for (Block* held = held_.front(); held != nullptr; held = held->next) {
    // What is of a domain that was made meanwhile was freed since.
    if (held->freed_on == stream && held->epoch != 0 &&
        held->domain < epochs.size() && held->epoch <= epochs[held->domain]) {
      held->freed_on = PassedStream();
    }
  }
  for (std::size_t domain = 0; domain < epochs.size(); ++domain) {
    // Nobody asks after the stream any more when this returns.
    Heap* const heap = heaps_[domain].get();
    Backlog* backlog = heap->Find(stream);
    while (backlog != nullptr && backlog->is_asked) {
      if (deadline.Passed()) {
        return absl::DeadlineExceededError(
            "another thread's question after the stream has no answer yet");
      }
      changed_.WaitFor(mutex_, deadline.Slice());
      backlog = heap->Find(stream);
    }
    if (backlog == nullptr) continue;
    heap->Pass(*backlog, epochs[domain]);
    points.push_back(std::exchange(backlog->points, {}));
    heap->Forget(stream);
  }
  CollectHeld();
  return absl::OkStatus();
}

}  // namespace vmm::pool
