// What a pool does when neither its heaps nor the driver have memory: whatever
// was freed serves, if it takes a wait on the GPU or of the host.
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/annotate.h"
#include "platform/base/status_macros.h"
#include "vmm/pool/internal/core.h"
#include "vmm/pool/internal/pools_of_process.h"

namespace vmm::pool {
namespace {

// How long a request may wait for the GPU before it is refused.
constexpr absl::Duration kLongestWait = absl::Seconds(10);
// How long zeroing memory for another domain may take before it is given up.
constexpr absl::Duration kZeroTimeout = absl::Seconds(30);

}  // namespace

absl::StatusOr<Block*> Core::LastResort(const Request& request,
                                        const absl::Status& why) {
  const Deadline deadline = Deadline::In(kLongestWait);
  Heap& heap = HeapOf(request);
  absl::Status refused = why;
  absl::Status failed;  // Of the driver: what kept freed memory from serving.
  // Then it cannot be made to wait, nor to zero anything.
  absl::StatusOr<bool> captured = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const Unlocked unlocked(*this);
    return IsCaptured(device_.driver(), request.stream);
  }();
  if (!captured.ok()) {
    // Nor where no context is current, in which nothing is captured then.
    last_error_ = captured.status();
    captured = false;
  }
  for (;;) {
    EmptyCaches();
    if (absl::Status asked = AskAll(); !asked.ok()) failed = asked;
    if (Block* const block = heap.Take(request, /*any=*/true)) return block;
    if (!*captured) {
      if (Block* const block = ReuseByWaiting(request, &failed)) {
        return block;
      }
      ASSIGN_OR_RETURN(const bool claimed, ClaimFromAnotherDomain(request));
      if (claimed) {
        if (Block* const block = heap.Take(request, /*any=*/true)) return block;
      }
    }
    // Memory that is idle in pieces, here and in the process's other pools.
    ReleaseIdle(0);
    {
      const Unlocked unlocked(*this);
      PoolsOfProcess::Get().GiveUpIdle(this);
    }
    while (growing_) changed_.Wait(mutex_);
    growing_ = true;
    refused = GrowInTurn(request);
    growing_ = false;
    changed_.NotifyAll();
    if (Block* const block = heap.Take(request, /*any=*/true)) return block;
    if (!refused.ok() && !absl::IsResourceExhausted(refused)) return refused;
    std::uint64_t waiting = 0;
    for (const auto& each : heaps_) waiting += each->bytes_waiting();
    // What the driver fails at will not end by waiting.
    if (waiting == 0 || !failed.ok() || deadline.Passed()) break;
    if (*captured) {
      return platform::Annotate(
          CannotGrow(request, refused), "the stream is captured into a graph",
          "It cannot be made to wait for what was freed on others: allocate "
          "before the capture");
    }
    if (absl::Status asked = AwaitGpu(deadline); !asked.ok()) {
      failed = std::move(asked);
    }
  }
  return CannotGrow(request, failed.ok() ? refused : failed);
}

absl::StatusOr<bool> Core::ClaimFromAnotherDomain(const Request& request) {
  for (const std::unique_ptr<Heap>& heap : heaps_) {
    if (heap.get() == &HeapOf(request)) continue;
    for (const std::unique_ptr<Segment>& segment : heap->segments()) {
      if (!segment->idle() || segment->exposed ||
          segment->size() < request.size ||
          segment->alignment() < request.alignment) {
        continue;
      }
      RETURN_IF_ERROR(ZeroForDomain(*segment, request));
      return true;
    }
  }
  return false;
}

// The GPU has passed all that was in the segment: nothing of it is taken.
absl::Status Core::ZeroForDomain(Segment& segment, const Request& request) {
  const platform::Driver& driver = device_.driver();
  Domain& domain = *domains_[request.domain];
  Heap& old_heap = *heaps_[segment.domain];
  // So that nobody else uses it, or gives it back, meanwhile.
  Block* const whole = old_heap.TakeWhole(segment);
  std::shared_ptr<SharedSegment> shared;
  const bool served = domain.is_served();
  absl::Status zeroed =
      [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) -> absl::Status {
    const Unlocked unlocked(*this);
    if (CUresult r = driver->cuMemsetD8Async(segment.base(), 0, segment.size(),
                                             request.stream);
        r != CUDA_SUCCESS) {
      return driver.Error(
          r, absl::StrCat("cuMemsetD8Async(size=", segment.size(),
                          ") of memory for another sharing domain"));
    }
    absl::StatusOr<OwnedEvent> point = RecordEvent(driver, request.stream);
    // The peers of the domain read when they like, whatever the stream does.
    absl::Status passed = point.ok()
                              ? AwaitPassing(*point, Deadline::In(kZeroTimeout))
                              : point.status();
    if (!passed.ok() && !absl::IsDeadlineExceeded(passed)) {
      // The program knows nothing of this work, and may end the pool.
      platform::ReportReleaseFailure(
          driver.Error(driver->cuStreamSynchronize(request.stream),
                       "cuStreamSynchronize() of memory that is zeroed"));
    }
    RETURN_IF_ERROR(passed);
    if (served) {
      ASSIGN_OR_RETURN(shared, Domain::Share(segment));
    }
    return absl::OkStatus();
  }();
  // A peer that came meanwhile has been given it, or is about to be.
  const bool kept = !zeroed.ok() || segment.exposed || segment.exporters > 0 ||
                    domain.is_served() != served;
  whole->freed_on = zeroed.ok() ? PassedStream() : request.stream;
  old_heap.Put(whole);
  if (kept) return zeroed;
  domains_[segment.domain]->Forget(segment.number, &last_error_);
  std::unique_ptr<Segment> moved = old_heap.Remove(segment);
  moved->number = domain.NextNumber();
  domain.Tell(*moved, std::move(shared), &last_error_);
  HeapOf(request).Add(std::move(moved));
  return absl::OkStatus();
}

}  // namespace vmm::pool
