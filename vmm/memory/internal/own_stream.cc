#include "vmm/memory/internal/own_stream.h"

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

}  // namespace vmm
