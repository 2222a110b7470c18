#include "vmm/pool/internal/points.h"

#include <optional>
#include <utility>

#include "platform/base/status_macros.h"
#include "vmm/memory/device.h"
#include "vmm/memory/internal/recorded_event.h"
#include "vmm/memory/stream_capture.h"
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

// The calling thread's; null without.
absl::StatusOr<CUcontext> CurrentContextOf(const platform::Driver& driver) {
  CUcontext current = nullptr;
  if (CUresult r = driver->cuCtxGetCurrent(&current); r != CUDA_SUCCESS) {
    return driver.Error(r, "cuCtxGetCurrent()");
  }
  return current;
}

// Whether the current context is one of that device. REQUIRES: there is one.
absl::StatusOr<bool> IsCurrent(const Device& device) {
  const platform::Driver& driver = device.driver();
  CUdevice its = 0;
  if (CUresult r = driver->cuCtxGetDevice(&its); r != CUDA_SUCCESS) {
    return driver.Error(r, "cuCtxGetDevice()");
  }
  return its == device.cuda_device();
}

}  // namespace

absl::StatusOr<CUcontext> ContextOf(const Device& device, CUstream stream) {
  const platform::Driver& driver = device.driver();
  ASSIGN_OR_RETURN(const CUcontext current, CurrentContextOf(driver));
  CUcontext context = current;
  if (!IsDefault(stream)) {
    const CUresult r = driver->cuStreamGetCtx(stream, &context);
    if (IsOfCapture(r)) {
      context = current;  // Nothing better is known then.
    } else if (r != CUDA_SUCCESS) {
      return driver.Error(
          r, "cuStreamGetCtx() of a stream that a pool's memory is used on");
    }
  }
  if (context == nullptr) return nullptr;
  std::optional<CurrentContext> entered;
  if (context != current) {
    ASSIGN_OR_RETURN(entered, MakeCurrent(driver, context));
  }
  ASSIGN_OR_RETURN(const bool is_its, IsCurrent(device));
  return is_its ? context : nullptr;
}

absl::StatusOr<bool> DefaultContext::Enter(const Device& device,
                                           CUcontext context) {
  const platform::Driver& driver = device.driver();
  ASSIGN_OR_RETURN(const CUcontext current, CurrentContextOf(driver));
  if (current != nullptr && context == nullptr) {
    ASSIGN_OR_RETURN(const bool is_its, IsCurrent(device));
    if (is_its) return true;
  } else if (current != nullptr && current == context) {
    return true;
  }
  if (context == nullptr) {
    ASSIGN_OR_RETURN(const bool active, PrimaryContext::IsActive(device));
    if (!active) return false;
    ASSIGN_OR_RETURN(PrimaryContext primary, PrimaryContext::Retain(device));
    context = primary.context();
    primary_ = std::move(primary);
  }
  ASSIGN_OR_RETURN(current_, MakeCurrent(driver, context));
  return true;
}

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
    const absl::StatusOr<bool> any = entered.Enter(device, context);
    if (!any.ok()) error_ = any.status();
    if (any.ok() && !*any) passed_ = epoch_;
    if (!any.ok() || !*any) return;
  }
  Ask(device.driver());
}

void Inquiry::Ask(const platform::Driver& driver) {
  bool busy = false;
  // A stream that is captured cannot be asked, nor told to record: later.
  const absl::StatusOr<bool> captured =
      needs_point_ ? IsCaptured(driver, stream_) : true;
  if (!captured.ok()) {
    error_ = captured.status();
  } else if (!*captured) {
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
    ASSIGN_OR_RETURN(const bool any, entered.Enter(device, context));
    if (!any) return IsDefault(stream_);  // There is nothing to wait for.
  }
  ASSIGN_OR_RETURN(const bool captured, IsCaptured(driver, stream_));
  if (captured) return false;
  RETURN_IF_ERROR(Record(driver));
  if (CUresult r = driver->cuStreamWaitEvent(
          stream, points_.back().event.get().event, 0);
      r != CUDA_SUCCESS) {
    return driver.Error(r, "cuStreamWaitEvent()");
  }
  return true;
}

}  // namespace vmm::pool
