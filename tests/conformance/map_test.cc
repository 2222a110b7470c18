// cuMemMap, cuMemUnmap.
#include "tests/conformance/conformance.h"

namespace vmm::testing {
namespace {

class Mapping : public Conformance {
 protected:
  Mapping() : handle(Create()), address(Reserve(4 * kGranule)) {}

  CUresult Try(CUdeviceptr at, std::size_t size, std::size_t offset = 0,
               unsigned long long flags = 0) {
    return cu.cuMemMap(at, size, offset, handle, flags);
  }

  const CUmemGenericAllocationHandle handle;
  const CUdeviceptr address;
};

TEST_F(Mapping, NeedsReservedAddresses) {
  EXPECT_EQ(Try(0, kGranule), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Try(0x7000000000, kGranule), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Try(address + 4 * kGranule, kGranule), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Mapping, NeedsValidArguments) {
  EXPECT_EQ(Try(address, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Try(address, kGranule, 0, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Try(address + 4096, kGranule), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Try(address + 4 * kGranule - 4096, kGranule),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemMap(address, kGranule, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
}

using Pitfall16 = Mapping;

TEST_F(Pitfall16, OnlyTheWholeMemoryFromOffsetZeroCanBeMapped) {
  EXPECT_EQ(Try(address, 4096), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(Try(address, 2 * kGranule), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(Try(address, kGranule, 4096), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(Try(address, kGranule, kGranule), CUDA_ERROR_NOT_SUPPORTED);
  const CUmemGenericAllocationHandle large = Create(2 * kGranule);
  EXPECT_EQ(cu.cuMemMap(address, kGranule, 0, large, 0),
            CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(cu.cuMemMap(address, kGranule, kGranule, large, 0),
            CUDA_ERROR_NOT_SUPPORTED);
}

TEST_F(Pitfall16, APartIsRefusedAsSuchWhereverItWouldGo) {
  const CUmemGenericAllocationHandle two = Create(2 * kGranule);
  const CUdeviceptr range = Reserve(2 * kGranule);
  constexpr CUdeviceptr kNowhere = CUdeviceptr{1} << 40;
  for (const CUdeviceptr at : {range + 4096, kNowhere}) {
    EXPECT_EQ(cu.cuMemMap(at, kGranule, 0, two, 0), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(cu.cuMemMap(at, 2 * kGranule, 4096, two, 0),
              CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(cu.cuMemMap(at, 2 * kGranule, 0, two, 0),
              CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cu.cuMemMap(at, kGranule, 0, two, 1), CUDA_ERROR_INVALID_VALUE);
  }
}

TEST_F(Pitfall16, NeitherCanAPartOfAnImport) {
  const CUmemGenericAllocationHandle imported = Import(Export(handle));
  EXPECT_EQ(cu.cuMemMap(address, 2 * kGranule, 0, imported, 0),
            CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(cu.cuMemMap(address, 4096, 0, imported, 0),
            CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(cu.cuMemMap(address, kGranule, 4096, imported, 0),
            CUDA_ERROR_NOT_SUPPORTED);
}

TEST_F(Mapping, RefusesAddressesThatAreMapped) {
  Map(address, handle);
  EXPECT_EQ(Try(address, kGranule), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemMap(address, kGranule, 0, Create(), 0),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Mapping, TheSameMemoryCanBeMappedTwice) {
  Map(address, handle);
  Map(address + kGranule, handle);
  SetAccess(address, 2 * kGranule);
  ASSERT_EQ(FillAndWait(cu, address, 9, kGranule), CUDA_SUCCESS);
  EXPECT_EQ(Bytes(address + kGranule, 3), std::vector<std::uint8_t>(3, 9));
}

TEST_F(Mapping, AddressesCanBeMappedAnew) {
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(Try(address, kGranule), CUDA_SUCCESS);
    ASSERT_EQ(cu.cuMemUnmap(address, kGranule), CUDA_SUCCESS);
  }
}

TEST_F(Mapping, ContentsSurviveUnmapping) {
  ASSERT_EQ(Try(address, kGranule), CUDA_SUCCESS);
  SetAccess(address, kGranule);
  ASSERT_EQ(FillAndWait(cu, address, 0x5a, kGranule), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuMemUnmap(address, kGranule), CUDA_SUCCESS);
  Map(address + 2 * kGranule, handle);
  SetAccess(address + 2 * kGranule, kGranule);
  EXPECT_EQ(Bytes(address + 2 * kGranule, 2),
            std::vector<std::uint8_t>(2, 0x5a));
}

class Unmapping : public Mapping {
 protected:
  // One granule at the start, then two in one piece, then nothing.
  Unmapping() : large(Create(2 * kGranule)) {
    EXPECT_EQ(cu.cuMemMap(address, kGranule, 0, handle, 0), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuMemMap(address + kGranule, 2 * kGranule, 0, large, 0),
              CUDA_SUCCESS);
    SetAccess(address, 3 * kGranule);
  }
  const CUmemGenericAllocationHandle large;
};

TEST_F(Unmapping, NeedsWholeMappings) {
  EXPECT_EQ(cu.cuMemUnmap(address, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemUnmap(address, 4096), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemUnmap(address + 4096, kGranule), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemUnmap(address + kGranule, kGranule),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemUnmap(address, 2 * kGranule), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemUnmap(0, kGranule), CUDA_ERROR_INVALID_VALUE);
  // Nothing was unmapped by the failures.
  EXPECT_EQ(FillAndWait(cu, address, 1, 3 * kGranule), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemUnmap(address, 3 * kGranule), CUDA_SUCCESS);
}

TEST_F(Unmapping, SkipsGaps) {
  EXPECT_EQ(cu.cuMemUnmap(address, 4 * kGranule), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemsetD8(address, 1, kGranule), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Unmapping, TakesOneOfSeveral) {
  EXPECT_EQ(cu.cuMemUnmap(address + kGranule, 2 * kGranule), CUDA_SUCCESS);
  EXPECT_EQ(FillAndWait(cu, address, 1, kGranule), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemsetD8(address + kGranule, 1, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemUnmap(address, kGranule), CUDA_SUCCESS);
}

}  // namespace
}  // namespace vmm::testing
