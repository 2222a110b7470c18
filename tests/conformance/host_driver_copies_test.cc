// Copies of the host-memory driver, where the model has its own rules.
#include <cstdint>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "tests/conformance/host_driver_test.h"

namespace vmm::testing {
namespace {

using HostCopies = Conformance;

TEST_F(HostCopies, ThatTouchTheHostsMemoryAreDoneAtTheirReturn) {
  const CUdeviceptr there = Memory();
  void* data = nullptr;
  ASSERT_EQ(cu.cuMemHostAlloc(&data, 64, 0), CUDA_SUCCESS);
  const auto host = reinterpret_cast<CUdeviceptr>(data);
  auto* const words = static_cast<volatile std::uint64_t*>(data);
  const std::uint64_t seven = 7;
  EXPECT_EQ(cu.cuMemcpyHtoD(host, &seven, 8), CUDA_SUCCESS);
  EXPECT_EQ(words[0], 7u);
  EXPECT_EQ(cu.cuMemcpyDtoD(there, host, 8), CUDA_SUCCESS);
  words[0] = 8;
  EXPECT_EQ(Word(there), 7u);
  EXPECT_EQ(cu.cuMemcpyDtoD(host + 8, there, 8), CUDA_SUCCESS);
  EXPECT_EQ(words[1], 7u);
  EXPECT_EQ(cu.cuMemcpyHtoDAsync(there, &seven, 8, CU_STREAM_LEGACY),
            CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamSynchronize(CU_STREAM_LEGACY), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemFreeHost(data), CUDA_SUCCESS);
}

TEST_F(HostCopies, ToTheHostMayGoToADevice) {
  const CUdeviceptr from = Memory();
  const CUdeviceptr mapped = Memory();
  CUdeviceptr block = 0;
  CUdeviceptr pooled = 0;
  ASSERT_EQ(cu.cuMemAlloc(&block, 64), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuMemAllocAsync(&pooled, 64, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(FillAndWait(cu, from, 5, 64), CUDA_SUCCESS);
  for (const CUdeviceptr to : {mapped, block, pooled}) {
    EXPECT_EQ(cu.cuMemcpyDtoH(reinterpret_cast<void*>(to), from, 8),
              CUDA_SUCCESS);
    EXPECT_EQ(Word(to), 0x0505050505050505u);
  }
  EXPECT_EQ(cu.cuMemFreeAsync(pooled, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemFree(block), CUDA_SUCCESS);
}

// Memory of the host whose bytes the program may only read is written as a device.
TEST_F(HostCopies, ToWhatTheCpuMayOnlyReadGoByADevice) {
  constexpr CUmemLocationType kNuma = CU_MEM_LOCATION_TYPE_HOST_NUMA;
  const CUdeviceptr from = Memory();
  const CUdeviceptr to = Reserve();
  Map(to, CreateWith(Properties(0, kNuma)));
  SetAccess(to, kGranule);
  EXPECT_EQ(FillAndWait(cu, from, 5, 64), CUDA_SUCCESS);
  const auto set = [&](CUmemAccess_flags flags) {
    const CUmemAccessDesc desc = Access(flags, 0, kNuma);
    return cu.cuMemSetAccess(to, kGranule, &desc, 1);
  };
  const auto get = [&] {
    const CUmemLocation location = Access(kNoAccess, 0, kNuma).location;
    unsigned long long flags = 77;
    EXPECT_EQ(cu.cuMemGetAccess(&flags, &location, to), CUDA_SUCCESS);
    return flags;
  };
  for (const CUmemAccess_flags flags : {kRead, kReadWrite, kNoAccess}) {
    EXPECT_EQ(set(flags), CUDA_SUCCESS);
    EXPECT_EQ(get(), static_cast<unsigned long long>(flags));
    EXPECT_EQ(FillAndWait(cu, to, 0, 8), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuMemcpyDtoH(reinterpret_cast<void*>(to), from, 8),
              CUDA_SUCCESS);
    EXPECT_EQ(Word(to), 0x0505050505050505u);
    // And read so where it may not even be read.
    EXPECT_EQ(cu.cuMemcpyHtoD(from + 8, reinterpret_cast<void*>(to), 8),
              CUDA_SUCCESS);
    EXPECT_EQ(Word(from + 8), 0x0505050505050505u);
    EXPECT_EQ(FillAndWait(cu, from + 8, 0, 8), CUDA_SUCCESS);
  }
}

TEST_F(HostCopies, OntoThemselvesAreOfWhatWasThere) {
  const CUdeviceptr address = Memory();
  std::vector<std::uint8_t> bytes(64);
  std::iota(bytes.begin(), bytes.end(), std::uint8_t{0});
  for (const auto& [to, from] : {std::pair(8, 0), std::pair(0, 8)}) {
    ASSERT_EQ(cu.cuMemcpyHtoD(address, bytes.data(), 64), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuMemcpyDtoD(address + to, address + from, 56), CUDA_SUCCESS);
    std::vector<std::uint8_t> moved = bytes;
    std::memmove(moved.data() + to, moved.data() + from, 56);
    EXPECT_EQ(Bytes(address, 64), moved) << to;
  }
}

}  // namespace
}  // namespace vmm::testing
