// A stream for a test.
#ifndef VMMSHARE_TESTS_GPU_STREAM_H_
#define VMMSHARE_TESTS_GPU_STREAM_H_

#include <cuda.h>
#include <gtest/gtest.h>

#include "tests/support/test_driver.h"

namespace vmm::testing {

// Of the context that is current. Synchronised before it goes.
class Stream {
 public:
  explicit Stream(unsigned flags = CU_STREAM_NON_BLOCKING) {
    EXPECT_EQ(TestDriver()->cuStreamCreate(&stream_, flags), CUDA_SUCCESS);
  }
  ~Stream() {
    Sync();
    EXPECT_EQ(TestDriver()->cuStreamDestroy(stream_), CUDA_SUCCESS);
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  CUstream get() const { return stream_; }
  void Sync() const {
    EXPECT_EQ(TestDriver()->cuStreamSynchronize(stream_), CUDA_SUCCESS);
  }
  bool IsIdle() const {
    return TestDriver()->cuStreamQuery(stream_) == CUDA_SUCCESS;
  }

 private:
  CUstream stream_ = nullptr;
};

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_GPU_STREAM_H_
