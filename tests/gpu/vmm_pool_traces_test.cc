// Pool under what a real program asked for, recorded: bounds on what is reserved,
// however far the GPU is behind.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "bench/trace.h"
#include "tests/gpu/changed_driver.h"
#include "tests/gpu/stream.h"
#include "tests/gpu/vmm_driver_test.h"
#include "vmm/pool/pool.h"

namespace vmm::testing {
namespace {

// A GPU that has passed an event when so many calls of the pool were made since
// it was recorded, and that is idle only where that is none.
struct GpuBehind {
  std::uint64_t calls = 0;
  std::uint64_t behind = 0;
  std::map<CUevent, std::uint64_t> recorded = {};
};
GpuBehind& Gpu() {
  static GpuBehind gpu;
  return gpu;
}

platform::Driver DriverOfGpuBehind() {
  platform::DriverTable table = TestDriver().table();
  table.cuStreamQuery = [](CUstream) {
    return Gpu().behind == 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
  };
  table.cuEventRecord = [](CUevent event, CUstream) {
    Gpu().recorded[event] = Gpu().calls;
    return CUDA_SUCCESS;
  };
  table.cuEventQuery = [](CUevent event) {
    return Gpu().calls - Gpu().recorded[event] >= Gpu().behind
               ? CUDA_SUCCESS
               : CUDA_ERROR_NOT_READY;
  };
  return ChangedDriver(table);
}

using PoolTracesTest = DriverTest;

// The most that a pool held. All is free at the end.
std::uint64_t Replay(const bench::Trace& trace, const Device& device) {
  const std::vector<Stream> streams(trace.streams);
  const std::unique_ptr<Pool> pool = Must(Pool::Create(device, {}));
  std::vector<CUdeviceptr> blocks(trace.allocations);
  std::uint64_t most = 0;
  for (const bench::TraceEvent& event : trace.events) {
    ++Gpu().calls;
    CUdeviceptr& block = blocks[event.allocation];
    CUstream stream = streams[event.stream].get();
    if (event.allocates) {
      block = Must(pool->Allocate(event.size, stream));
      most = std::max(most, pool->statistics().reserved);
    } else {
      EXPECT_TRUE(pool->Free(std::exchange(block, 0), stream).ok());
    }
  }
  for (CUdeviceptr block : blocks) {
    if (block == 0) continue;
    EXPECT_TRUE(pool->Free(block, streams.front().get()).ok());
  }
  const absl::Status whole = pool->CheckInvariants();
  EXPECT_TRUE(whole.ok()) << whole;
  Gpu().behind = 0;
  return most;
}

TEST_F(PoolTracesTest, TrainingOfATransformerReservesATwentiethMoreThanIsLive) {
  const bench::Trace trace =
      Must(bench::ReadTrace(VMMSHARE_TRACES "/transformer_training.trace"));
  const Device behind = Must(Device::ByOrdinal(DriverOfGpuBehind(), 0));
  for (const std::uint64_t calls :
       {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{7}, std::uint64_t{30},
        std::uint64_t{200}, std::uint64_t{1000},
        std::numeric_limits<std::uint64_t>::max()}) {
    Gpu() = {.behind = calls};
    EXPECT_LE(Replay(trace, behind), trace.peak_live / 20 * 21)
        << calls << " calls behind";
  }
}

}  // namespace
}  // namespace vmm::testing
