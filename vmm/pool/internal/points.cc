#include "vmm/pool/internal/points.h"

#include <utility>

#include "platform/base/status_macros.h"
#include "vmm/memory/internal/recorded_event.h"
#include "vmm/memory/stream_capture.h"
#include "vmm/pool/internal/stream_context.h"
#include "vmm/pool/pool.h"

namespace vmm::pool {
namespace {

// Of one backlog. What is freed later waits for the next one.
constexpr std::size_t kMostPoints = 16;

// The legacy default stream is behind all others that synchronise with it as soon
// as a command is on it: a point, say, which waits for them.
CUstream AskedFor(CUstream stream) {
  return stream == AllStreams() ? CU_STREAM_LEGACY : stream;
}

}  // namespace

Inquiry::Inquiry(Backlog& backlog)
    : backlog_(&backlog),
      stream_(AskedFor(backlog.stream())),
      epoch_(backlog.Close()),
      needs_point_(backlog.NeedsPoint()),
      points_(std::exchange(backlog.points, {})) {
  backlog.is_asked = true;
}

void Inquiry::End() {
  backlog_->points = std::move(points_);
  backlog_->is_asked = false;
}

absl::Status Inquiry::Record(const platform::Driver& driver) {
  ASSIGN_OR_RETURN(OwnedEvent event, RecordEvent(driver, stream_));
  points_.push_back({std::move(event), epoch_});
  return absl::OkStatus();
}

void Inquiry::Ask(const Device& device, CUcontext context) {
  DefaultContext entered;
  if (IsDefault(stream_)) {
    const absl::StatusOr<bool> is_used = entered.Enter(device, context);
    if (!is_used.ok()) {
      error_ = is_used.status();
      return;
    }
    if (!*is_used) {
      passed_ = epoch_;
      return;
    }
  }
  AskEntered(device.driver());
}

void Inquiry::AskEntered(const platform::Driver& driver) {
  bool busy = false;
  // One that is captured can neither be asked nor told to record: later. Where
  // points cover all that was freed, they alone are asked.
  const absl::StatusOr<bool> skips_stream =
      needs_point_ ? IsCaptured(driver, stream_) : true;
  if (!skips_stream.ok()) {
    error_ = skips_stream.status();
  } else if (!*skips_stream) {
    const CUresult r = driver->cuStreamQuery(stream_);
    if (r == CUDA_SUCCESS) {
      points_.clear();
      passed_ = epoch_;
      return;
    }
    busy = r == CUDA_ERROR_NOT_READY;
    if (!busy) {
      error_ = driver.Error(
          r, "cuStreamQuery() of a stream that a pool's memory is used on");
    }
  }
  while (!points_.empty()) {
    absl::StatusOr<bool> reached = HasPassed(points_.front().event);
    if (platform::ResultOf(reached.status()) == CUDA_ERROR_CAPTURED_EVENT) {
      // The capture began between the question and the record.
      points_.erase(points_.begin());
      continue;
    }
    if (!reached.ok()) error_ = reached.status();
    if (!reached.ok() || !*reached) break;
    passed_ = points_.front().epoch;
    points_.erase(points_.begin());
  }
  if (busy && points_.size() < kMostPoints) {
    absl::Status recorded = Record(driver);
    if (!recorded.ok()) error_ = std::move(recorded);
  }
}

absl::StatusOr<bool> Inquiry::MakeWait(const Device& device, CUcontext context,
                                       CUstream stream) {
  const platform::Driver& driver = device.driver();
  DefaultContext entered;
  if (IsDefault(stream_) || IsDefault(stream)) {
    ASSIGN_OR_RETURN(const bool is_used, entered.Enter(device, context));
    if (!is_used) return IsDefault(stream_);  // There is nothing to wait for.
  }
  ASSIGN_OR_RETURN(const bool captured, IsCaptured(driver, stream_));
  if (captured) return false;
  RETURN_IF_ERROR(Record(driver));
  if (CUresult r = driver->cuStreamWaitEvent(
          stream, points_.back().event.get().event, /*flags=*/0);
      r != CUDA_SUCCESS) {
    return driver.Error(r, "cuStreamWaitEvent()");
  }
  return true;
}

}  // namespace vmm::pool
