// Stream capture, as it concerns those who do not capture.
//
// While a stream is captured into a CUDA graph, asking how far it is
// invalidates the capture, and so do, on any thread, cuMemAlloc() and its like,
// each cuMemPool call and every question after an event, unless the asking
// thread's mode is relaxed (cuThreadExchangeStreamCaptureMode). So whatever here
// makes, maps, opens or gives back memory relaxes it around its calls: one that
// is refused would lose the capture, and the memory too.
#ifndef VMMSHARE_VMM_MEMORY_STREAM_CAPTURE_H_
#define VMMSHARE_VMM_MEMORY_STREAM_CAPTURE_H_

#include <cuda.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "platform/cuda/driver.h"

namespace vmm {

// While it lives, no call of this thread invalidates a capture of another
// stream. Destroy on the same thread. REQUIRES: `driver` outlives it.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const platform::Driver& driver)
      : driver_(driver), changed_(Exchange()) {}
  ~RelaxedCapture() {
    if (changed_) Exchange();
  }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  // A driver that refuses leaves the mode as it is: nothing else is lost.
  bool Exchange() {
    return driver_->cuThreadExchangeStreamCaptureMode(&mode_) == CUDA_SUCCESS;
  }

  const platform::Driver& driver_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
  const bool changed_;
};

// The same for the rest of a thread of our own.
inline void RelaxCaptureForThread(const platform::Driver& driver) {
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  driver->cuThreadExchangeStreamCaptureMode(&mode);
}

// Whether the driver refused a call because of a capture.
inline bool IsOfCapture(CUresult result) {
  return result >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED &&
         result <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
}

// Whether `stream` is captured, so that nobody may ask how far it is. So is the
// default stream of a context in which a blocking stream is captured. Errors as
// the driver answers.
absl::StatusOr<bool> IsCaptured(const platform::Driver& driver,
                                CUstream stream);

// FAILED_PRECONDITION when `stream` is captured: it cannot `do_what`. `remedy`
// says what to do about it.
absl::Status CheckNotCaptured(const platform::Driver& driver, CUstream stream,
                              absl::string_view do_what,
                              absl::string_view remedy);

// As cuStreamSynchronize() of the current context's default stream, for who has put work
// there that must be done when it returns: that call returns at once, and breaks the
// capture, while another thread captures a stream. Breaks none; waits for the end of
// those of streams that synchronise with the default one. REQUIRES: none of these was
// begun by this thread.
CUresult AwaitDefaultStream(const platform::Driver& driver);

}  // namespace vmm

#endif  // VMMSHARE_VMM_MEMORY_STREAM_CAPTURE_H_
