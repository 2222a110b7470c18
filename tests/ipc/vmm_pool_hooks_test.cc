// The hooks of PyTorch where frees of two threads meet.
#include <cuda.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "tests/gpu/changed_driver.h"
#include "tests/ipc/pool_ipc_test.h"
#include "vmm/c/hooks.h"
#include "vmm/c/internal/handles.h"

namespace vmm::testing {
namespace {

using PoolHooksTest = PoolIpcTest;

// What another thread does while the first free waits for the device.
std::function<void()> meanwhile;

CUresult CUDAAPI AllocateMeanwhile(void** memory, std::size_t size,
                                   unsigned int flags) {
  if (const auto others = std::exchange(meanwhile, nullptr)) {
    std::thread(others).join();
  }
  return TestDriver()->cuMemHostAlloc(memory, size, flags);
}

// Both frees have found the pool by then, and the second has no block left to count.
TEST_F(PoolHooksTest, ABlockThatPyTorchDidNotGetIsNotCountedTwice) {
  platform::DriverTable table = TestDriver().table();
  table.cuMemHostAlloc = &AllocateMeanwhile;
  const Device changed = Must(Device::ByOrdinal(ChangedDriver(table), 0));
  const auto set = [](vmmshare_pool* given) {
    EXPECT_EQ(vmmshare_torch_set_pool(0, given, nullptr), VMMSHARE_OK);
  };
  const auto free = [](CUdeviceptr block) {
    vmmshare_torch_free(reinterpret_cast<void*>(block), kGranule, 0, nullptr);
  };
  for (const bool stays_set : {true, false}) {
    SCOPED_TRACE(stays_set);
    auto handle = std::make_unique<vmmshare_pool>(
        Must(Pool::Create(changed, SmallSegments())));
    const std::weak_ptr<Pool> pool = handle->pool;
    set(handle.get());
    const auto block = reinterpret_cast<CUdeviceptr>(
        vmmshare_torch_alloc(kGranule, 0, nullptr));
    const CUdeviceptr of_others =
        Must(handle->pool->Allocate(kGranule, CU_STREAM_LEGACY));
    if (!stays_set) set(nullptr);
    meanwhile = [free, of_others] { free(of_others); };
    free(block);
    EXPECT_EQ(meanwhile, nullptr) << "the free did not wait for the device";
    EXPECT_EQ(vmmshare_hooks_last_error(nullptr), VMMSHARE_OK);
    EXPECT_EQ(handle->pool->statistics().live, 0u);
    set(nullptr);
    handle.reset();
    EXPECT_TRUE(pool.expired());
  }
}

}  // namespace
}  // namespace vmm::testing
