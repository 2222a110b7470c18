#include "vmm/memory/internal/recorded_event.h"

#include "platform/base/status_macros.h"
#include "platform/os/pauses.h"
#include "vmm/memory/device.h"
#include "vmm/memory/stream_capture.h"

namespace vmm {

void RecordedEventTraits::Close(const Value& value) {
  platform::ReportReleaseFailure(value.driver->Error(
      (*value.driver)->cuEventDestroy(value.event), "cuEventDestroy()"));
}

absl::StatusOr<OwnedEvent> RecordEvent(const platform::Driver& driver,
                                       CUstream stream,
                                       absl::string_view do_what,
                                       absl::string_view remedy) {
  RETURN_IF_ERROR(CheckNotCaptured(driver, stream, do_what, remedy));
  // An event belongs to the context that is current when it is made, and must
  // be of the stream's own.
  CUcontext context = nullptr;
  if (CUresult r = driver->cuStreamGetCtx(stream, &context);
      r != CUDA_SUCCESS) {
    return driver.Error(r, "cuStreamGetCtx()");
  }
  ASSIGN_OR_RETURN(const CurrentContext current, MakeCurrent(driver, context));
  CUevent raw = nullptr;
  if (CUresult r = driver->cuEventCreate(&raw, CU_EVENT_DISABLE_TIMING);
      r != CUDA_SUCCESS) {
    return driver.Error(r, "cuEventCreate()");
  }
  OwnedEvent event = OwnedEvent::Adopt({driver, raw});
  if (CUresult r = driver->cuEventRecord(raw, stream); r != CUDA_SUCCESS) {
    return driver.Error(r, "cuEventRecord()");
  }
  return event;
}

absl::StatusOr<bool> HasPassed(const OwnedEvent& event) {
  const platform::Driver& driver = *event.get().driver;
  const RelaxedCapture relaxed(driver);
  const CUresult result = driver->cuEventQuery(event.get().event);
  if (result == CUDA_ERROR_NOT_READY) return false;
  if (result == CUDA_SUCCESS) return true;
  return driver.Error(result, "cuEventQuery()",
                      "Work on the event's stream failed.");
}

// CUDA offers no wait for an event with a deadline.
absl::Status AwaitPassing(const OwnedEvent& event, Deadline deadline) {
  platform::Pauses pauses;
  for (;;) {
    ASSIGN_OR_RETURN(const bool passed, HasPassed(event));
    if (passed) return absl::OkStatus();
    if (deadline.Passed()) {
      return absl::DeadlineExceededError(
          "the GPU has not passed the stream's work yet");
    }
    pauses.Take(deadline);
  }
}

}  // namespace vmm
