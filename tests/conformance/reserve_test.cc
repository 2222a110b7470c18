// cuMemAddressReserve, cuMemAddressFree.
#include "tests/conformance/conformance.h"

namespace vmm::testing {
namespace {

class Reserving : public Conformance {
 protected:
  // What cuMemAddressReserve answers; checks and frees what it reserved.
  CUresult Try(std::size_t size, std::size_t alignment = 0,
               CUdeviceptr hint = 0) {
    CUdeviceptr address = 0;
    const CUresult result =
        cu.cuMemAddressReserve(&address, size, alignment, hint, 0);
    if (result == CUDA_SUCCESS) {
      EXPECT_NE(address, 0u);
      EXPECT_EQ(address % kGranule, 0u);
      if (alignment != 0) {
        EXPECT_EQ(address % alignment, 0u);
      }
      EXPECT_EQ(cu.cuMemAddressFree(address, size), CUDA_SUCCESS);
    } else {
      EXPECT_EQ(address, 0u);
    }
    return result;
  }
};

TEST_F(Reserving, TakesSizesOnTheGranularityOnly) {
  EXPECT_EQ(Try(kGranule), CUDA_SUCCESS);
  EXPECT_EQ(Try(7 * kGranule), CUDA_SUCCESS);
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{1}, std::size_t{4096}, std::size_t{65536},
        kGranule + 4096}) {
    EXPECT_EQ(Try(size), CUDA_ERROR_INVALID_VALUE) << size;
  }
}

TEST_F(Reserving, TakesATebibyte) {
  EXPECT_EQ(Try(std::size_t{1} << 40), CUDA_SUCCESS);
}

TEST_F(Reserving, HasNoRoomForTheWholeAddressSpace) {
  EXPECT_EQ(Try(std::size_t{1} << 47), CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_F(Reserving, TakesAlignmentsThatArePowersOfTwo) {
  for (const std::size_t alignment :
       {std::size_t{1}, std::size_t{4096}, std::size_t{65536}, kGranule,
        2 * kGranule, std::size_t{1} << 30}) {
    EXPECT_EQ(Try(kGranule, alignment), CUDA_SUCCESS) << alignment;
  }
  for (const std::size_t alignment :
       {std::size_t{3}, kGranule + 1, 3 * kGranule}) {
    EXPECT_EQ(Try(kGranule, alignment), CUDA_ERROR_INVALID_VALUE) << alignment;
  }
}

TEST_F(Reserving, GoesElsewhereWhenTheHintIsOccupied) {
  const CUdeviceptr first = Reserve();
  CUdeviceptr second = 0;
  ASSERT_EQ(cu.cuMemAddressReserve(&second, kGranule, 0, first, 0),
            CUDA_SUCCESS);
  EXPECT_NE(second, first);
  EXPECT_EQ(cu.cuMemAddressFree(second, kGranule), CUDA_SUCCESS);
}

TEST_F(Reserving, RefusesHintsOffTheAlignment) {
  EXPECT_EQ(Try(kGranule, 0, 0x200000000001), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Try(kGranule, 0, 0x300000001000), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Try(kGranule, 2 * kGranule, 0x310000200000),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Reserving, NeedsValidArguments) {
  CUdeviceptr address = 0;
  EXPECT_EQ(cu.cuMemAddressReserve(&address, kGranule, 0, 0, 1),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemAddressReserve(nullptr, kGranule, 0, 0, 0),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Reserving, FreesWholeReservationsOnly) {
  const CUdeviceptr address = Reserve(4 * kGranule);
  EXPECT_EQ(cu.cuMemAddressFree(address, kGranule), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemAddressFree(address + kGranule, 3 * kGranule),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemAddressFree(address, 8 * kGranule),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemAddressFree(0, kGranule), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemAddressFree(address, 0), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Reserving, DoesNotFreeUnderAMapping) {
  const CUdeviceptr address = Reserve(4 * kGranule);
  const CUmemGenericAllocationHandle handle = Create();
  ASSERT_EQ(cu.cuMemMap(address + kGranule, kGranule, 0, handle, 0),
            CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemAddressFree(address, 4 * kGranule),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemUnmap(address + kGranule, kGranule), CUDA_SUCCESS);
}

TEST_F(Reserving, DoesNotFreeTwice) {
  CUdeviceptr address = 0;
  ASSERT_EQ(cu.cuMemAddressReserve(&address, kGranule, 0, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemAddressFree(address, kGranule), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemAddressFree(address, kGranule), CUDA_ERROR_INVALID_VALUE);
}

}  // namespace
}  // namespace vmm::testing
