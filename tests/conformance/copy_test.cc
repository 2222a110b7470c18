// Copies, fills, cuMemAlloc and cuMemHostAlloc.
#include <numeric>

#include "tests/conformance/conformance.h"

namespace vmm::testing {
namespace {

class Copying : public Conformance {
 protected:
  // Two mappings side by side, with access, and two granules of nothing.
  Copying() : address(Reserve(4 * kGranule)) {
    Map(address, Create());
    Map(address + kGranule, Create());
    SetAccess(address, 2 * kGranule);
    EXPECT_EQ(FillAndWait(cu, address, 0, 2 * kGranule), CUDA_SUCCESS);
  }
  const CUdeviceptr address;
  char buffer[64] = {};
};

TEST_F(Copying, NewMemoryIsZero) {
  const CUdeviceptr fresh = Reserve();
  Map(fresh, Create());
  SetAccess(fresh, kGranule);
  EXPECT_EQ(Bytes(fresh, kGranule), std::vector<std::uint8_t>(kGranule, 0));
}

TEST_F(Copying, BringsBackWhatItTook) {
  std::vector<std::uint8_t> bytes(100'000);
  std::iota(bytes.begin(), bytes.end(), std::uint8_t{3});
  EXPECT_EQ(cu.cuMemcpyHtoD(address + 17, bytes.data(), bytes.size()),
            CUDA_SUCCESS);
  EXPECT_EQ(Bytes(address + 17, bytes.size()), bytes);
  EXPECT_EQ(Bytes(address + 16, 1)[0], 0);
}

TEST_F(Copying, CrossesFromOneMappingToTheNext) {
  std::vector<std::uint8_t> bytes(4096);
  std::iota(bytes.begin(), bytes.end(), std::uint8_t{0});
  EXPECT_EQ(cu.cuMemcpyHtoD(address + kGranule - 2048, bytes.data(), 4096),
            CUDA_SUCCESS);
  EXPECT_EQ(Bytes(address + kGranule - 2048, 4096), bytes);
}

TEST_F(Copying, StopsAtTheEndOfWhatIsMapped) {
  const CUdeviceptr end = address + 2 * kGranule;
  EXPECT_EQ(FillAndWait(cu, address, 1, 2 * kGranule), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemsetD8(address, 1, 2 * kGranule + 1),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemcpyDtoH(buffer, end - 8, 16), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemcpyDtoH(buffer, end, 8), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemcpyHtoD(end - 8, buffer, 16), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemcpyDtoD(address, address + kGranule, kGranule),
            CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemcpyDtoD(address, address + kGranule, kGranule + 1),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuCtxSynchronize(), CUDA_SUCCESS) << "none of it is sticky";
}

TEST_F(Copying, RefusesAddressesThatAreNotTheDevices) {
  EXPECT_EQ(cu.cuMemcpyHtoD(0, buffer, 8), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemcpyDtoH(buffer, 0x123456789000, 8),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemcpyHtoD(reinterpret_cast<CUdeviceptr>(buffer), buffer, 8),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemcpyHtoD(address, nullptr, 8), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemcpyDtoH(nullptr, address, 8), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Copying, NoBytesAreAlwaysFine) {
  EXPECT_EQ(cu.cuMemcpyHtoD(address, buffer, 0), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemcpyHtoD(0, buffer, 0), CUDA_SUCCESS);
  EXPECT_EQ(FillAndWait(cu, 0, 0, 0), CUDA_SUCCESS);
}

TEST_F(Copying, NeedsAccess) {
  const CUdeviceptr mapped = Reserve();
  Map(mapped, Create());
  EXPECT_EQ(cu.cuMemcpyHtoD(mapped, buffer, 8), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemcpyDtoH(buffer, mapped, 8), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemsetD8(mapped, 1, 8), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuCtxSynchronize(), CUDA_SUCCESS);
}

TEST_F(Copying, ReadsButDoesNotWriteWhatIsReadOnly) {
  SetAccess(address, kGranule, kRead);
  EXPECT_EQ(cu.cuMemcpyDtoH(buffer, address, 8), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemcpyDtoD(address + kGranule, address, 8), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemcpyHtoD(address, buffer, 8), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemsetD8(address, 1, 8), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemcpyDtoD(address, address + kGranule, 8),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemsetD8Async(address, 1, 8, nullptr),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemcpyHtoDAsync(address, buffer, 8, nullptr),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuCtxSynchronize(), CUDA_SUCCESS);
}

TEST_F(Copying, TakesADeviceAddressInPlaceOfAHostOne) {
  ASSERT_EQ(FillAndWait(cu, address + kGranule, 4, 8), CUDA_SUCCESS);
  EXPECT_EQ(
      cu.cuMemcpyHtoD(address, reinterpret_cast<void*>(address + kGranule), 8),
      CUDA_SUCCESS);
  EXPECT_EQ(Bytes(address, 8), std::vector<std::uint8_t>(8, 4));
}

TEST_F(Copying, FillsWords) {
  EXPECT_EQ(cu.cuMemsetD32(address, 0x01020304, 4), CUDA_SUCCESS);
  EXPECT_EQ(Word(address + 8), 0x0102030401020304u);
  EXPECT_EQ(Word(address + 16), 0u);
  EXPECT_EQ(cu.cuMemsetD32(address + 1, 7, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemsetD32(address + 2, 7, 1), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Copying, DoesTheSameInAStream) {
  const CUstream stream = MakeStream();
  const std::vector<std::uint8_t> ones(512, 1);
  std::vector<std::uint8_t> back(512);
  EXPECT_EQ(cu.cuMemcpyHtoDAsync(address, ones.data(), 512, stream),
            CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemcpyDtoDAsync(address + 512, address, 512, stream),
            CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemsetD8Async(address + 512, 2, 1, stream), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemsetD32Async(address + 516, 0x03030303, 1, stream),
            CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemcpyDtoHAsync(back.data(), address + 512, 512, stream),
            CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamSynchronize(stream), CUDA_SUCCESS);
  std::vector<std::uint8_t> expected(512, 1);
  expected[0] = 2;
  for (int i = 4; i < 8; ++i) expected[i] = 3;
  EXPECT_EQ(back, expected);
}

TEST_F(Copying, ASourceOnTheHeapMayBeReusedAtOnce) {
  const CUstream stream = MakeStream();
  const CUstream other = MakeStream();
  ASSERT_EQ(cu.cuStreamWaitValue64(stream, address, 1, 0), CUDA_SUCCESS);
  std::vector<std::uint8_t> bytes(1024, 6);
  ASSERT_EQ(
      cu.cuMemcpyHtoDAsync(address + 64, bytes.data(), bytes.size(), stream),
      CUDA_SUCCESS);
  bytes.assign(1024, 9);
  ASSERT_EQ(cu.cuStreamWriteValue64(other, address, 1, 0), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_EQ(Bytes(address + 64, 1024), std::vector<std::uint8_t>(1024, 6));
}

class Blocks : public Conformance {};

TEST_F(Blocks, AreUsableAtOnce) {
  CUdeviceptr block = 0;
  ASSERT_EQ(cu.cuMemAlloc(&block, 5000), CUDA_SUCCESS);
  EXPECT_EQ(block % 256, 0u);
  EXPECT_EQ(FillAndWait(cu, block, 3, 5000), CUDA_SUCCESS);
  EXPECT_EQ(Bytes(block + 4990, 10), std::vector<std::uint8_t>(10, 3));
  EXPECT_EQ(cu.cuMemFree(block), CUDA_SUCCESS);
}

TEST_F(Blocks, OfSizesThatCannotBeAreRefused) {
  CUdeviceptr block = 0;
  EXPECT_EQ(cu.cuMemAlloc(&block, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemAlloc(&block, std::size_t{1} << 50),
            CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_F(Blocks, AreFreedByTheirStartOnly) {
  CUdeviceptr block = 0;
  ASSERT_EQ(cu.cuMemAlloc(&block, 5000), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemFree(0), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemFree(block + 256), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemFree(0x123456789000), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemFree(Memory()), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemFree(block), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemFree(block), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Blocks, OnTheHostServeCpuAndDevice) {
  void* host = nullptr;
  ASSERT_EQ(cu.cuMemHostAlloc(&host, 4096, 0), CUDA_SUCCESS);
  auto* bytes = static_cast<volatile std::uint8_t*>(host);
  bytes[0] = 7;
  const auto address = reinterpret_cast<CUdeviceptr>(host);
  const CUdeviceptr device = Memory();
  EXPECT_EQ(cu.cuMemcpyDtoD(device, address, 1), CUDA_SUCCESS);
  EXPECT_EQ(Bytes(device, 1)[0], 7);
  EXPECT_EQ(cu.cuMemFreeHost(static_cast<char*>(host) + 8),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemFreeHost(host), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemFreeHost(host), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Blocks, OnTheHostHaveKnownFlags) {
  void* host = nullptr;
  EXPECT_EQ(cu.cuMemHostAlloc(&host, 100, 99), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cu.cuMemHostAlloc(&host, 100, CU_MEMHOSTALLOC_PORTABLE),
            CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemFreeHost(host), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemFreeHost(nullptr), CUDA_SUCCESS);
}

}  // namespace
}  // namespace vmm::testing
