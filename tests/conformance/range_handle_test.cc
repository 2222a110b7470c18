// cuMemGetHandleForAddressRange.
#include "tests/conformance/conformance.h"
#include "tests/conformance/descriptors.h"

namespace vmm::testing {
namespace {

constexpr std::size_t kPages = 64 << 10;  // Of every size of host page.

CUmemoryPool MakePool(const platform::DriverTable& cu) {
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUmemoryPool pool = nullptr;
  EXPECT_EQ(cu.cuMemPoolCreate(&pool, &props), CUDA_SUCCESS);
  return pool;
}

class RangeHandles : public Conformance {
 protected:
  void SetUp() override {
    int supported = 0;
    ASSERT_EQ(cu.cuDeviceGetAttribute(&supported,
                                      CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, 0),
              CUDA_SUCCESS);
    if (supported == 0) GTEST_SKIP() << "device 0 has no dma-buf";
  }
  CUresult Export(CUdeviceptr address, std::size_t size) {
    int fd = -1;
    const CUresult result = cu.cuMemGetHandleForAddressRange(
        &fd, address, size, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
    EXPECT_EQ(fd >= 0, result == CUDA_SUCCESS);
    if (fd >= 0) CloseDescriptor(fd);
    return result;
  }
};

TEST_F(RangeHandles, AreOfAllMappedMemoryOrAPartOfIt) {
  const CUdeviceptr memory = Memory();
  EXPECT_EQ(Export(memory, kGranule), CUDA_SUCCESS);
  EXPECT_EQ(Export(memory + kPages, kPages), CUDA_SUCCESS);
}

TEST_F(RangeHandles, AreOfMemoryOfCuMemAllocToo) {
  CUdeviceptr memory = 0;
  ASSERT_EQ(cu.cuMemAlloc(&memory, kGranule), CUDA_SUCCESS);
  EXPECT_EQ(Export(memory, kGranule), CUDA_SUCCESS);
  EXPECT_EQ(Export(memory + kPages, kPages), CUDA_SUCCESS);
  EXPECT_NE(Export(memory, 2 * kGranule), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemFree(memory), CUDA_SUCCESS);
}

// Small blocks lie side by side in one page, and are had with it.
TEST_F(RangeHandles, AreOfThePagesAroundASmallBlock) {
  CUdeviceptr memory = 0;
  ASSERT_EQ(cu.cuMemAlloc(&memory, 100), CUDA_SUCCESS);
  EXPECT_EQ(Export(memory / kPages * kPages, kPages), CUDA_SUCCESS);
  EXPECT_NE(Export(memory / kPages * kPages, 2 * kGranule), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemFree(memory), CUDA_SUCCESS);
}

TEST_F(RangeHandles, AreOfMemoryOfAStreamOrderedPoolToo) {
  CUdeviceptr memory = 0;
  ASSERT_EQ(cu.cuMemAllocAsync(&memory, kGranule, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(Export(memory, kGranule), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuMemFreeAsync(memory, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamSynchronize(nullptr), CUDA_SUCCESS);
}

// Not where a block lies in the middle of what the pool had from the driver.
TEST_F(RangeHandles, BeginWhereAPoolsMemoryDoes) {
  const CUmemoryPool pool = MakePool(cu);
  CUdeviceptr first = 0;
  CUdeviceptr second = 0;
  for (CUdeviceptr* block : {&first, &second}) {
    ASSERT_EQ(cu.cuMemAllocFromPoolAsync(block, kGranule, pool, nullptr),
              CUDA_SUCCESS);
  }
  ASSERT_EQ(cu.cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  ASSERT_EQ(second, first + kGranule);
  EXPECT_EQ(Export(first, kGranule), CUDA_SUCCESS);
  EXPECT_EQ(Export(first, 2 * kGranule), CUDA_SUCCESS) << "both";
  EXPECT_EQ(Export(second, kGranule), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Export(second, kPages), CUDA_ERROR_INVALID_VALUE);
  for (const CUdeviceptr block : {first, second}) {
    EXPECT_EQ(cu.cuMemFreeAsync(block, nullptr), CUDA_SUCCESS);
  }
  EXPECT_EQ(cu.cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemPoolDestroy(pool), CUDA_SUCCESS);
}

TEST_F(RangeHandles, AreNotOfTheHostsMemory) {
  const CUdeviceptr address = Reserve();
  Map(address, CreateWith(Properties(kFd, CU_MEM_LOCATION_TYPE_HOST_NUMA)));
  SetAccess(address, kGranule);
  EXPECT_EQ(Export(address, kGranule), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(RangeHandles, TakeACurrentContext) {
  const CUdeviceptr memory = Memory();
  CUcontext context = nullptr;
  ASSERT_EQ(cu.cuCtxPopCurrent(&context), CUDA_SUCCESS);
  EXPECT_EQ(Export(memory, kGranule), CUDA_ERROR_INVALID_CONTEXT);
  ASSERT_EQ(cu.cuCtxPushCurrent(context), CUDA_SUCCESS);
}

TEST_F(RangeHandles, AreOfWholePages) {
  const CUdeviceptr memory = Memory();
  EXPECT_EQ(Export(memory + 1, kPages), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Export(memory, kPages + 1), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(RangeHandles, AreNotOfAddressesWithoutMemory) {
  EXPECT_NE(Export(Reserve(), kGranule), CUDA_SUCCESS);
}

}  // namespace
}  // namespace vmm::testing
