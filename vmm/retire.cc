#include "vmm/retire.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "vmm/primary_context.h"

namespace vmm {
namespace {

using platform::Owned;

// CUDA offers no wait for an event with a deadline, so Drain() asks again and
// again, more slowly each time up to this.
constexpr absl::Duration kLongestPause = absl::Milliseconds(1);

}  // namespace

void RecordedEventTraits::Close(const Value& value) {
  platform::ReportReleaseFailure(value.driver->Error(
      (*value.driver)->cuEventDestroy(value.event), "cuEventDestroy()"));
}

RetireQueue::~RetireQueue() {
  for (Retired& retired : retired_) {
    platform::ReportReleaseFailure(
        driver_.Error(driver_->cuEventSynchronize(retired.passed.get().event),
                      "cuEventSynchronize() of retired memory"));
  }
}

absl::StatusOr<Owned<RecordedEventTraits>> RetireQueue::Record(
    CUstream stream) {
  // An event belongs to the context that is current when it is made, and must
  // be of the stream's own.
  CUcontext context = nullptr;
  if (CUresult r = driver_->cuStreamGetCtx(stream, &context);
      r != CUDA_SUCCESS) {
    return driver_.Error(r, "cuStreamGetCtx()");
  }
  absl::StatusOr<CurrentContext> current = MakeCurrent(driver_, context);
  if (!current.ok()) return current.status();
  CUevent raw = nullptr;
  if (CUresult r = driver_->cuEventCreate(&raw, CU_EVENT_DISABLE_TIMING);
      r != CUDA_SUCCESS) {
    return driver_.Error(r, "cuEventCreate()");
  }
  auto event = Owned<RecordedEventTraits>::Adopt({driver_, raw});
  if (CUresult r = driver_->cuEventRecord(raw, stream); r != CUDA_SUCCESS) {
    return driver_.Error(r, "cuEventRecord()");
  }
  return event;
}

absl::Status RetireQueue::Retire(Allocation&& memory, CUstream stream) {
  absl::StatusOr<Owned<RecordedEventTraits>> event = Record(stream);
  if (!event.ok()) return event.status();
  retired_.push_back({std::move(memory), *std::move(event)});
  return absl::OkStatus();
}

absl::Status RetireQueue::Retire(ImportedAllocation&& memory, CUstream stream) {
  absl::StatusOr<Owned<RecordedEventTraits>> event = Record(stream);
  if (!event.ok()) return event.status();
  retired_.push_back({std::move(memory), *std::move(event)});
  return absl::OkStatus();
}

absl::Status RetireQueue::Retire(Mapping&& memory, CUstream stream) {
  absl::StatusOr<Owned<RecordedEventTraits>> event = Record(stream);
  if (!event.ok()) return event.status();
  retired_.push_back({std::move(memory), *std::move(event)});
  return absl::OkStatus();
}

absl::StatusOr<bool> RetireQueue::HasPassed(const Retired& retired) const {
  const CUresult result = driver_->cuEventQuery(retired.passed.get().event);
  if (result == CUDA_ERROR_NOT_READY) return false;
  if (result == CUDA_SUCCESS) return true;
  return driver_.Error(result, "cuEventQuery() of retired memory",
                       "Work on its stream failed; the memory is kept.");
}

absl::StatusOr<std::size_t> RetireQueue::Collect() {
  std::size_t collected = 0;
  // Streams pass their work in any order among each other.
  for (auto retired = retired_.begin(); retired != retired_.end();) {
    absl::StatusOr<bool> passed = HasPassed(*retired);
    if (!passed.ok()) return passed.status();
    if (*passed) {
      retired = retired_.erase(retired);
      ++collected;
    } else {
      ++retired;
    }
  }
  return collected;
}

absl::Status RetireQueue::Drain(absl::Time deadline) {
  absl::Duration pause = absl::Microseconds(10);
  for (;;) {
    absl::StatusOr<std::size_t> collected = Collect();
    if (!collected.ok()) return collected.status();
    if (retired_.empty()) return absl::OkStatus();
    if (absl::Now() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat(retired_.size(),
                       " retired allocations still wait for their streams"));
    }
    absl::SleepFor(std::min(pause, deadline - absl::Now()));
    pause = std::min(pause * 2, kLongestPause);
  }
}

}  // namespace vmm
