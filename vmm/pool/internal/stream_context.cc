#include "vmm/pool/internal/stream_context.h"

#include <utility>

#include "platform/base/status_macros.h"
#include "vmm/memory/stream_capture.h"
#include "vmm/pool/pool.h"

namespace vmm::pool {
namespace {

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

absl::Status CheckIsOneStream(CUstream stream) {
  if (stream == AllStreams()) {
    return absl::InvalidArgumentError(
        "the stream is AllStreams(), which is none; pass it to Allocate() and "
        "Free() alone");
  }
  if (stream == CU_STREAM_PER_THREAD) {
    return absl::InvalidArgumentError(
        "the stream is CU_STREAM_PER_THREAD, which is another stream on each "
        "thread, so that a pool cannot keep order by it; pass a stream of your "
        "own, or CU_STREAM_LEGACY");
  }
  return absl::OkStatus();
}

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

}  // namespace vmm::pool
