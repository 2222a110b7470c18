#include "vmm/memory/stream_capture.h"

#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"
#include "platform/os/pauses.h"

namespace vmm {

absl::StatusOr<bool> IsCaptured(const platform::Driver& driver,
                                CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult r = driver->cuStreamIsCapturing(stream, &status);
  if (r == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) return true;
  if (r != CUDA_SUCCESS) return driver.Error(r, "cuStreamIsCapturing()");
  return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

absl::Status CheckNotCaptured(const platform::Driver& driver, CUstream stream,
                              absl::string_view do_what,
                              absl::string_view remedy) {
  ASSIGN_OR_RETURN(const bool captured, IsCaptured(driver, stream));
  if (!captured) return absl::OkStatus();
  const bool is_default = stream == nullptr || stream == CU_STREAM_LEGACY;
  return absl::FailedPreconditionError(
      absl::StrCat("cannot ", do_what, ": stream 0x",
                   absl::Hex(reinterpret_cast<std::uintptr_t>(stream)),
                   is_default ? " synchronises with one that" : "",
                   " is being captured into a graph; ", remedy));
}

CUresult AwaitDefaultStream(const platform::Driver& driver) {
  const RelaxedCapture relaxed(driver);
  platform::Pauses pauses;
  for (;;) {
    if (!IsCaptured(driver, nullptr).value_or(false)) {
      const CUresult r = driver->cuStreamSynchronize(nullptr);
      if (!IsOfCapture(r)) return r;
    }
    pauses.Take(absl::InfiniteFuture());
  }
}

}  // namespace vmm
