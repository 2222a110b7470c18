#include "vmm/memory/internal/spare_context.h"

#include "platform/base/status_macros.h"

namespace vmm {

absl::StatusOr<CurrentContext> SpareContext::EnterFor(CUstream stream) {
  if (stream != nullptr && stream != CU_STREAM_LEGACY) return CurrentContext();
  const platform::Driver& driver = device_.driver();
  CUcontext current = nullptr;
  if (CUresult r = driver->cuCtxGetCurrent(&current); r != CUDA_SUCCESS) {
    return driver.Error(r, "cuCtxGetCurrent()");
  }
  if (current != nullptr) return CurrentContext();
  const platform::MutexLock lock(mutex_);
  if (!primary_.has_value()) {
    ASSIGN_OR_RETURN(primary_, PrimaryContext::Retain(device_));
  }
  return primary_->MakeCurrent();
}

}  // namespace vmm
