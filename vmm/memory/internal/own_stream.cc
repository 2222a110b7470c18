#include "vmm/memory/internal/own_stream.h"

#include "absl/strings/str_cat.h"
#include "platform/os/pauses.h"

namespace vmm {

void OwnStreamTraits::Close(const Value& value) {
  const platform::Driver& driver = *value.driver;
  platform::ReportReleaseFailure(
      driver.Error(driver->cuStreamDestroy(value.stream), "cuStreamDestroy()"));
}

absl::StatusOr<OwnedStream> MakeOwnStream(const platform::Driver& driver) {
  CUstream stream = nullptr;
  if (CUresult r = driver->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
      r != CUDA_SUCCESS) {
    return driver.Error(r, "cuStreamCreate(CU_STREAM_NON_BLOCKING)");
  }
  return OwnedStream::Adopt({driver, stream});
}

// CUDA has no wait with a deadline.
absl::StatusOr<bool> HasEndedBy(const OwnedStream& own, Deadline deadline) {
  const platform::Driver& driver = *own.get().driver;
  platform::Pauses pauses;
  for (;;) {
    const CUresult r = driver->cuStreamQuery(own.get().stream);
    if (r == CUDA_SUCCESS) return true;
    if (r != CUDA_ERROR_NOT_READY) return driver.Error(r, "cuStreamQuery()");
    if (deadline.Passed()) return false;
    pauses.Take(deadline);
  }
}

absl::Status StandsStill(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat(
      "the device has not done ", what,
      ": it has stopped, is full of kernels that run on, or as many streams of "
      "this process wait as there are hardware queues "
      "(CUDA_DEVICE_MAX_CONNECTIONS, 8 without it)"));
}

}  // namespace vmm
