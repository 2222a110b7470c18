// Pools of the host-memory driver at their edges: pages with freed blocks on them,
// room that another stream still has, or that is in too small pieces.
#include <cstdint>
#include <string>
#include <vector>

#include "tests/conformance/descriptors.h"
#include "tests/conformance/host_driver_test.h"
#include "tests/conformance/pool_test_base.h"
#include "tests/support/child.h"

namespace vmm::testing {
namespace {

class HostPoolEdges : public PoolTest {};

// args: descriptor of a pool.
int ImportsAStrangePool(const std::vector<std::string>& args) {
  const platform::DriverTable& cu = DriverWithContext();
  CUmemoryPool pool = nullptr;
  Checks checks;
  checks.Expect("import",
                cu.cuMemPoolImportFromShareableHandle(
                    &pool,
                    reinterpret_cast<void*>(
                        static_cast<std::intptr_t>(std::stoi(args[0]))),
                    kFd, 0),
                kInvalid);
  return checks.failures();
}
const bool kImportsAStrangePool =
    RegisterChild("imports-a-strange-pool", &ImportsAStrangePool);

TEST_F(HostPoolEdges, APoolMeansNothingOnAnotherMachine) {
  int fd = -1;
  ASSERT_EQ(ExportPoolTo(cu, &fd, MakePool(kFd)), CUDA_SUCCESS);
  const int inherited = Inheritable(fd);
  CloseDescriptor(fd);
  EXPECT_EQ(Child::Start("imports-a-strange-pool", {std::to_string(inherited)},
                         {{"VMMSHARE_HOST_INSTANCE", "elsewhere"}})
                .Wait(),
            0);
  CloseDescriptor(inherited);
}

TEST_F(HostPoolEdges, StreamsThatMayNotWaitForEachOtherRunOut) {
  CUmemPoolProps props = PoolProperties();
  props.maxSize = 32 * kMiB;
  const CUmemoryPool pool = MakePoolWith(props);
  const int no = 0;
  ASSERT_EQ(cu.cuMemPoolSetAttribute(
                pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES,
                const_cast<int*>(&no)),
            CUDA_SUCCESS);
  const CUstream first = MakeStream();
  const CUstream second = MakeStream();
  const CUdeviceptr gate = Memory();
  ASSERT_EQ(cu.cuStreamWaitValue64(first, gate, 1, 0), CUDA_SUCCESS);
  const CUdeviceptr block = Take(pool, 32 * kMiB, first);
  ASSERT_EQ(cu.cuMemFreeAsync(block, first), CUDA_SUCCESS);
  CUdeviceptr again = 0;
  EXPECT_EQ(cu.cuMemAllocFromPoolAsync(&again, 32 * kMiB, pool, second),
            CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cu.cuStreamWriteValue64(second, gate, 1, 0), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamSynchronize(first), CUDA_SUCCESS);
  again = Take(pool, 32 * kMiB, second);
  EXPECT_NE(again, 0u);
  EXPECT_EQ(cu.cuMemFreeAsync(again, second), CUDA_SUCCESS);
}

TEST_F(HostPoolEdges, RoomInTooSmallPiecesIsGivenBackForALargerOne) {
  CUmemPoolProps props = PoolProperties();
  props.maxSize = 64 * kMiB;
  const CUmemoryPool pool = MakePoolWith(props);
  ASSERT_EQ(Set(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, SIZE_MAX),
            CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemFreeAsync(Take(pool, 32 * kMiB), nullptr), CUDA_SUCCESS);
  EXPECT_EQ(Get(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 32 * kMiB);
  const CUdeviceptr large = Take(pool, 64 * kMiB);
  EXPECT_EQ(Get(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 64 * kMiB);
  EXPECT_EQ(cu.cuMemFreeAsync(large, nullptr), CUDA_SUCCESS);
}

TEST_F(HostPoolEdges, TrimmingKeepsWhatIsUsedAndWhatIsAsked) {
  const CUmemoryPool pool = MakePool();
  ASSERT_EQ(Set(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, SIZE_MAX),
            CUDA_SUCCESS);
  const auto reserved = [&] {
    return Get(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
  };
  const CUdeviceptr used = Take(pool, 32 * kMiB);
  const CUdeviceptr freed = Take(pool, 32 * kMiB);
  EXPECT_EQ(reserved(), 64 * kMiB);
  EXPECT_EQ(cu.cuMemFreeAsync(freed, nullptr), CUDA_SUCCESS);
  for (const std::size_t keep : {64, 40}) {
    EXPECT_EQ(cu.cuMemPoolTrimTo(pool, keep * kMiB), CUDA_SUCCESS);
    EXPECT_EQ(reserved(), 64 * kMiB) << keep;
  }
  EXPECT_EQ(cu.cuMemPoolTrimTo(pool, 0), CUDA_SUCCESS);
  EXPECT_EQ(reserved(), 32 * kMiB);
  EXPECT_EQ(cu.cuMemFreeAsync(used, nullptr), CUDA_SUCCESS);
}

// A page of the first block's, which is freed, and of the second's.
TEST_F(HostPoolEdges, ARangeMayBeginWithWhatWasFreed) {
  int supported = 0;
  ASSERT_EQ(cu.cuDeviceGetAttribute(&supported,
                                    CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, 0),
            CUDA_SUCCESS);
  if (supported == 0) GTEST_SKIP() << "device 0 has no dma-buf";
  const CUmemoryPool pool = MakePool(kFd);
  const CUdeviceptr first = Take(pool, 512);
  const CUdeviceptr second = Take(pool, 512);
  ASSERT_EQ(second, first + 512);
  ASSERT_EQ(first % 4096, 0u);
  int fd = -1;
  const auto get = [&](CUdeviceptr address, std::size_t size) {
    return cu.cuMemGetHandleForAddressRange(
        &fd, address, size, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
  };
  EXPECT_EQ(cu.cuMemFreeAsync(first, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(get(first, 4096), CUDA_SUCCESS);
  CloseDescriptor(fd);
  fd = -1;
  EXPECT_EQ(get(first, 64 * kMiB), kInvalid) << "past all that the pool has";
  EXPECT_EQ(cu.cuMemFreeAsync(second, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(get(first, 4096), kInvalid) << "nothing is there";
  // Nor is the host's memory a device's.
  void* host = nullptr;
  ASSERT_EQ(cu.cuMemHostAlloc(&host, 8192, 0), CUDA_SUCCESS);
  EXPECT_EQ(get(reinterpret_cast<CUdeviceptr>(host), 4096), kInvalid);
  EXPECT_EQ(cu.cuMemFreeHost(host), CUDA_SUCCESS);
  EXPECT_EQ(fd, -1);
}

}  // namespace
}  // namespace vmm::testing
