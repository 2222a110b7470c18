// Where a pool lets go of streams, and puts one behind another.
#include <optional>
#include <utility>
#include <vector>

#include "platform/base/status_macros.h"
#include "vmm/memory/internal/recorded_event.h"
#include "vmm/memory/stream_capture.h"
#include "vmm/pool/internal/core.h"
#include "vmm/pool/internal/stream_context.h"

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

absl::Status Core::Order(CUstream first, CUstream then, Deadline deadline) {
  RETURN_IF_ERROR(CheckStream(first));
  RETURN_IF_ERROR(CheckStream(then));
  if (first == then || (IsDefault(first) && IsDefault(then))) {
    return absl::OkStatus();
  }
  CUcontext context = nullptr;
  {
    const platform::MutexLock lock(mutex_);
    context = context_;
  }
  const platform::Driver& driver = device_.driver();
  const RelaxedCapture relaxed(driver);
  DefaultContext entered;
  bool can_wait = true;
  if (IsDefault(first) || IsDefault(then)) {
    ASSIGN_OR_RETURN(const bool is_used, entered.Enter(device_, context));
    if (!is_used && IsDefault(first)) return absl::OkStatus();
    can_wait = is_used;
  }
  if (can_wait) {
    ASSIGN_OR_RETURN(const bool captured, IsCaptured(driver, then));
    if (captured) {
      // Of a default stream, which never is captured, this says that a blocking
      // one of its context is: recording on it is refused then.
      ASSIGN_OR_RETURN(const bool both, IsCaptured(driver, first));
      if (both && !IsDefault(first) && !IsDefault(then)) {
        return absl::OkStatus();
      }
    }
    can_wait = !captured;
  }
  ASSIGN_OR_RETURN(
      const OwnedEvent point,
      RecordEvent(driver, first, "put another stream behind this one",
                  "allocate the block for the stream that uses it first, or "
                  "use it first outside of the capture"));
  if (!can_wait) return AwaitPassing(point, deadline);
  return driver.Error(
      driver->cuStreamWaitEvent(then, point.get().event, /*flags=*/0),
      "cuStreamWaitEvent()");
}

}  // namespace vmm::pool
