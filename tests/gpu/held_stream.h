// A stream whose work a test can stop and go on with.
#ifndef VMMSHARE_TESTS_GPU_HELD_STREAM_H_
#define VMMSHARE_TESTS_GPU_HELD_STREAM_H_

#include <cuda.h>
#include <gtest/gtest.h>

#include "platform/cuda/driver.h"
#include "tests/support/must.h"
#include "vmm/memory/allocation.h"
#include "vmm/memory/device.h"

namespace vmm::testing {

// A stream that stands still until Release().
class HeldStream {
 public:
  explicit HeldStream(const Device& device,
                      unsigned flags = CU_STREAM_NON_BLOCKING)
      : driver_(device.driver()),
        flag_(Must(Allocation::Create(device, {.size = 1}))) {
    Check(driver_->cuStreamCreate(&held_, flags));
    Check(driver_->cuStreamCreate(&other_, CU_STREAM_NON_BLOCKING));
    // Not the whole context: another stream of it may be held already.
    Check(driver_->cuMemsetD8Async(flag_.address(), 0, 8, other_));
    Check(driver_->cuStreamSynchronize(other_));
    Check(driver_->cuStreamWaitValue64(held_, flag_.address(), 1,
                                       CU_STREAM_WAIT_VALUE_GEQ));
  }
  ~HeldStream() {
    Release();
    Check(driver_->cuStreamSynchronize(held_));
    Check(driver_->cuStreamDestroy(held_));
    Check(driver_->cuStreamDestroy(other_));
  }
  void Release() {
    Check(driver_->cuStreamWriteValue64(other_, flag_.address(), 1, 0));
    Check(driver_->cuStreamSynchronize(other_));
  }
  CUstream get() const { return held_; }
  CUstream other() const { return other_; }

 private:
  static void Check(CUresult result) { EXPECT_EQ(result, CUDA_SUCCESS); }

  platform::Driver driver_;
  Allocation flag_;
  CUstream held_ = nullptr;
  CUstream other_ = nullptr;
};

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_GPU_HELD_STREAM_H_
