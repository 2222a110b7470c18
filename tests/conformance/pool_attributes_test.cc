// How much a pool holds, and what it keeps. Documented, not measured.
#include "tests/conformance/pool_test_base.h"

namespace vmm::testing {
namespace {

constexpr auto kThreshold = CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
constexpr auto kReserved = CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT;
constexpr auto kReservedHigh = CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH;
constexpr auto kUsed = CU_MEMPOOL_ATTR_USED_MEM_CURRENT;
constexpr auto kUsedHigh = CU_MEMPOOL_ATTR_USED_MEM_HIGH;

class PoolAttributes : public PoolTest {
 protected:
  // Takes and gives back, so that the pool has what it may keep.
  void Use(CUmemoryPool pool, std::size_t size) {
    EXPECT_EQ(cu.cuMemFreeAsync(Take(pool, size), nullptr), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuCtxSynchronize(), CUDA_SUCCESS);
  }
};

TEST_F(PoolAttributes, HaveTheDocumentedDefaults) {
  const CUmemoryPool pool = MakePool();
  EXPECT_EQ(Get(pool, kThreshold), 0u);
  EXPECT_EQ(Get(pool, kUsed), 0u);
  EXPECT_EQ(Get(pool, kUsedHigh), 0u);
  for (const CUmemPool_attribute flag :
       {CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES,
        CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC,
        CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES}) {
    EXPECT_EQ(GetFlag(pool, flag), 1) << flag;
    int no = 0;
    EXPECT_EQ(cu.cuMemPoolSetAttribute(pool, flag, &no), CUDA_SUCCESS);
    EXPECT_EQ(GetFlag(pool, flag), 0) << flag;
  }
}

TEST_F(PoolAttributes, CountWhatIsUsedAndReserved) {
  const CUmemoryPool pool = MakePool();
  const CUdeviceptr first = Take(pool, 4 * kMiB);
  const CUdeviceptr second = Take(pool, 2 * kMiB);
  EXPECT_EQ(Get(pool, kUsed), 6 * kMiB);
  EXPECT_EQ(Get(pool, kUsedHigh), 6 * kMiB);
  EXPECT_GE(Get(pool, kReserved), 6 * kMiB);
  EXPECT_GE(Get(pool, kReservedHigh), Get(pool, kReserved));
  EXPECT_EQ(cu.cuMemFreeAsync(first, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemFreeAsync(second, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(Get(pool, kUsed), 0u);
  EXPECT_EQ(Get(pool, kUsedHigh), 6 * kMiB);
}

TEST_F(PoolAttributes, HighWaterMarksGoBackToZeroOnly) {
  const CUmemoryPool pool = MakePool();
  Use(pool, 4 * kMiB);
  EXPECT_EQ(Set(pool, kUsedHigh, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Set(pool, kReservedHigh, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Get(pool, kUsedHigh), 4 * kMiB);
  EXPECT_EQ(Set(pool, kUsedHigh, 0), CUDA_SUCCESS);
  EXPECT_EQ(Set(pool, kReservedHigh, 0), CUDA_SUCCESS);
  EXPECT_EQ(Get(pool, kUsedHigh), 0u);
  EXPECT_EQ(Get(pool, kReservedHigh), 0u);
}

TEST_F(PoolAttributes, WhatTheDriverCountsCannotBeSet) {
  const CUmemoryPool pool = MakePool();
  EXPECT_EQ(Set(pool, kUsed, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Set(pool, kReserved, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Set(pool, static_cast<CUmemPool_attribute>(999), 0),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemPoolGetAttribute(pool, kUsed, nullptr),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(PoolAttributes, WithoutAThresholdNothingIsKeptAcrossASynchronize) {
  const std::size_t before = FreeMemory();
  const CUmemoryPool pool = MakePool();
  Use(pool, 4 * kMiB);
  EXPECT_EQ(Get(pool, kReserved), 0u);
  EXPECT_EQ(FreeMemory(), before);
}

TEST_F(PoolAttributes, BelowTheThresholdMemoryIsKeptUntilTrimmed) {
  const CUmemoryPool pool = MakePool();
  ASSERT_EQ(Set(pool, kThreshold, UINT64_MAX), CUDA_SUCCESS);
  EXPECT_EQ(Get(pool, kThreshold), UINT64_MAX);
  Use(pool, 4 * kMiB);
  const std::uint64_t kept = Get(pool, kReserved);
  EXPECT_GE(kept, 4 * kMiB);
  EXPECT_EQ(cu.cuMemPoolTrimTo(pool, kept), CUDA_SUCCESS);
  EXPECT_EQ(Get(pool, kReserved), kept);
  EXPECT_EQ(cu.cuMemPoolTrimTo(pool, 0), CUDA_SUCCESS);
  EXPECT_EQ(Get(pool, kReserved), 0u);
}

TEST_F(PoolAttributes, MemoryInUseIsNotTrimmed) {
  const CUmemoryPool pool = MakePool();
  const CUdeviceptr address = Take(pool, 4 * kMiB);
  ASSERT_EQ(FillAndWait(cu, address, 5, 4 * kMiB), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemPoolTrimTo(pool, 0), CUDA_SUCCESS);
  EXPECT_GE(Get(pool, kReserved), 4 * kMiB);
  EXPECT_EQ(Bytes(address, 4 * kMiB), std::vector<std::uint8_t>(4 * kMiB, 5));
  EXPECT_EQ(cu.cuMemFreeAsync(address, nullptr), CUDA_SUCCESS);
}

// One device has all access or none; the pool's own has it always.
TEST_F(PoolAttributes, AccessIsADevicesAllOrNone) {
  const CUmemoryPool pool = MakePool();
  const auto set = [&](CUmemAccess_flags flags, int id,
                       CUmemLocationType type = CU_MEM_LOCATION_TYPE_DEVICE) {
    const CUmemAccessDesc desc = Access(flags, id, type);
    return cu.cuMemPoolSetAccess(pool, &desc, 1);
  };
  constexpr int kNoDevice = 63;
  EXPECT_EQ(set(kReadWrite, 0), CUDA_SUCCESS);
  EXPECT_EQ(set(kRead, 0), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(set(kNoAccess, 0), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(set(static_cast<CUmemAccess_flags>(2), 0),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(set(kReadWrite, kNoDevice), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(set(kReadWrite, 0, CU_MEM_LOCATION_TYPE_HOST),
            CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(set(kReadWrite, 0, CU_MEM_LOCATION_TYPE_HOST_NUMA),
            CUDA_ERROR_NOT_SUPPORTED);
  const CUmemAccessDesc own = Access(kReadWrite);
  EXPECT_EQ(cu.cuMemPoolSetAccess(pool, &own, 0), CUDA_SUCCESS) << "of none";
  EXPECT_EQ(cu.cuMemPoolSetAccess(pool, nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  const auto get = [&](int id, CUmemLocationType type,
                       CUmemAccess_flags* flags) {
    CUmemLocation where = Access(kRead, id, type).location;
    return cu.cuMemPoolGetAccess(flags, pool, &where);
  };
  CUmemAccess_flags flags = kReadWrite;
  EXPECT_EQ(get(0, CU_MEM_LOCATION_TYPE_HOST, &flags), CUDA_SUCCESS);
  EXPECT_EQ(flags, kNoAccess);
  EXPECT_EQ(get(0, CU_MEM_LOCATION_TYPE_DEVICE, &flags), CUDA_SUCCESS);
  EXPECT_EQ(flags, kReadWrite);
  EXPECT_EQ(get(kNoDevice, CU_MEM_LOCATION_TYPE_DEVICE, &flags),
            CUDA_ERROR_INVALID_VALUE);
}

}  // namespace
}  // namespace vmm::testing
