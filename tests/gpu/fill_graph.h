// A captured graph for a test.
#ifndef VMMSHARE_TESTS_GPU_FILL_GRAPH_H_
#define VMMSHARE_TESTS_GPU_FILL_GRAPH_H_

#include <cuda.h>
#include <gtest/gtest.h>

#include <cstdint>

#include "platform/cuda/driver.h"
#include "tests/gpu/stream.h"
#include "tests/support/test_driver.h"

namespace vmm::testing {

// A graph that fills `size` bytes with a value at each launch; null where the
// driver has none.
class FillGraph {
 public:
  FillGraph(CUdeviceptr at, std::uint64_t size, std::uint8_t value) {
    if (!Supported()) return;
    const platform::Driver& driver = TestDriver();
    CUgraph graph = nullptr;
    EXPECT_EQ(driver->cuStreamBeginCapture(stream_.get(),
                                           CU_STREAM_CAPTURE_MODE_RELAXED),
              CUDA_SUCCESS);
    EXPECT_EQ(driver->cuMemsetD8Async(at, value, size, stream_.get()),
              CUDA_SUCCESS);
    EXPECT_EQ(driver->cuStreamEndCapture(stream_.get(), &graph), CUDA_SUCCESS);
    EXPECT_EQ(driver->cuGraphInstantiate(&made_, graph, 0), CUDA_SUCCESS);
    EXPECT_EQ(driver->cuGraphDestroy(graph), CUDA_SUCCESS);
  }
  ~FillGraph() {
    if (made_ == nullptr) return;
    EXPECT_EQ(TestDriver()->cuGraphExecDestroy(made_), CUDA_SUCCESS);
  }
  FillGraph(const FillGraph&) = delete;
  FillGraph& operator=(const FillGraph&) = delete;

  static bool Supported() {
    return TestDriver().Need<&platform::DriverTable::cuGraphInstantiate>().ok();
  }
  void Replay() {
    EXPECT_EQ(TestDriver()->cuGraphLaunch(made_, stream_.get()), CUDA_SUCCESS);
    stream_.Sync();
  }

 private:
  Stream stream_;
  CUgraphExec made_ = nullptr;
};

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_GPU_FILL_GRAPH_H_
