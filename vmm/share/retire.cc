#include "vmm/share/retire.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "platform/base/annotate.h"
#include "vmm/memory/stream_capture.h"

namespace vmm {
namespace {

// CUDA offers no wait for an event with a deadline, so Drain() asks again and
// again, more slowly each time up to this.
constexpr absl::Duration kLongestPause = absl::Milliseconds(1);

}  // namespace

RetireQueue::~RetireQueue() {
  if (retired_.empty()) return;  // Nor a driver, if it was moved from.
  const RelaxedCapture relaxed(driver_);
  for (Retired& retired : retired_) {
    platform::ReportReleaseFailure(
        driver_.Error(driver_->cuEventSynchronize(retired.passed.get().event),
                      "cuEventSynchronize() of retired memory"));
  }
}

absl::Status RetireQueue::Retire(Allocation&& memory, CUstream stream) {
  absl::StatusOr<OwnedEvent> event = RecordEvent(driver_, stream);
  if (!event.ok()) return event.status();
  retired_.push_back({std::move(memory), *std::move(event)});
  return absl::OkStatus();
}

absl::Status RetireQueue::Retire(ImportedAllocation&& memory, CUstream stream) {
  absl::StatusOr<OwnedEvent> event = RecordEvent(driver_, stream);
  if (!event.ok()) return event.status();
  retired_.push_back({std::move(memory), *std::move(event)});
  return absl::OkStatus();
}

absl::Status RetireQueue::Retire(Mapping&& memory, CUstream stream) {
  absl::StatusOr<OwnedEvent> event = RecordEvent(driver_, stream);
  if (!event.ok()) return event.status();
  retired_.push_back({std::move(memory), *std::move(event)});
  return absl::OkStatus();
}

absl::StatusOr<std::size_t> RetireQueue::Collect() {
  std::size_t collected = 0;
  // Streams pass their work in any order among each other.
  for (auto retired = retired_.begin(); retired != retired_.end();) {
    absl::StatusOr<bool> passed = HasPassed(retired->passed);
    if (!passed.ok()) {
      return platform::Annotate(passed.status(),
                                "RetireQueue::Collect(): the memory is kept");
    }
    if (*passed) {
      retired = retired_.erase(retired);
      ++collected;
    } else {
      ++retired;
    }
  }
  return collected;
}

absl::Status RetireQueue::Drain(Deadline deadline) {
  absl::Duration pause = absl::Microseconds(10);
  for (;;) {
    absl::StatusOr<std::size_t> collected = Collect();
    if (!collected.ok()) return collected.status();
    if (retired_.empty()) return absl::OkStatus();
    if (deadline.Passed()) {
      return absl::DeadlineExceededError(
          absl::StrCat(retired_.size(),
                       " retired allocations still wait for their streams"));
    }
    absl::SleepFor(std::min(pause, deadline.Left()));
    pause = std::min(pause * 2, kLongestPause);
  }
}

}  // namespace vmm
