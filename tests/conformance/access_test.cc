// cuMemSetAccess, cuMemGetAccess.
#include <array>

#include "tests/conformance/conformance.h"

namespace vmm::testing {
namespace {

class AccessTest : public Conformance {
 protected:
  // Two mappings side by side and two granules of nothing.
  AccessTest() : address(Reserve(4 * kGranule)) {
    Map(address, Create());
    Map(address + kGranule, Create());
  }

  CUresult Set(CUdeviceptr at, std::size_t size, const CUmemAccessDesc& desc) {
    return cu.cuMemSetAccess(at, size, &desc, 1);
  }
  CUresult Get(CUdeviceptr at, const CUmemAccessDesc& desc) {
    unsigned long long flags = 0;
    return cu.cuMemGetAccess(&flags, &desc.location, at);
  }

  const CUdeviceptr address;
};
using SettingAccess = AccessTest;
using GettingAccess = AccessTest;

TEST_F(SettingAccess, NeedsAMapping) {
  EXPECT_EQ(Set(address + 2 * kGranule, kGranule, Access(kReadWrite)),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Set(address, 4 * kGranule, Access(kReadWrite)),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(SettingAccess, NeedsValidArguments) {
  const CUmemAccessDesc desc = Access(kReadWrite);
  EXPECT_EQ(Set(address, 4096, desc), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Set(address + 4096, kGranule, desc), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Set(address, kGranule / 2, desc), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Set(address, 0, desc), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemSetAccess(address, kGranule, &desc, 0),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemSetAccess(address, kGranule, nullptr, 1),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(SettingAccess, NeedsAKnownPlaceAndKnownFlags) {
  EXPECT_EQ(Set(address, kGranule, Access(kReadWrite, 99)),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Set(address, kGranule, Access(kReadWrite, -1)),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Set(address, kGranule, Access(static_cast<CUmemAccess_flags>(2))),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Set(address, kGranule, Access(static_cast<CUmemAccess_flags>(7))),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Set(address, kGranule,
                Access(kReadWrite, 0, static_cast<CUmemLocationType>(0))),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Set(address, kGranule,
                Access(kReadWrite, 0, static_cast<CUmemLocationType>(4))),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(SettingAccess, GivesTheHostNoneOfDeviceMemory) {
  for (const CUmemLocationType host :
       {CU_MEM_LOCATION_TYPE_HOST, CU_MEM_LOCATION_TYPE_HOST_NUMA}) {
    EXPECT_EQ(Set(address, kGranule, Access(kReadWrite, 0, host)),
              CUDA_ERROR_NOT_SUPPORTED);
  }
  EXPECT_EQ(
      Set(address, kGranule, Access(kNoAccess, 0, CU_MEM_LOCATION_TYPE_HOST)),
      CUDA_SUCCESS);
}

TEST_F(SettingAccess, NeedsWholeMappings) {
  const CUdeviceptr large = Reserve(2 * kGranule);
  Map(large, Create(2 * kGranule), 2 * kGranule);
  EXPECT_EQ(Set(large, kGranule, Access(kReadWrite)), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(AccessOf(large), 0u);
}

TEST_F(SettingAccess, CoversSeveralMappingsInOneCall) {
  EXPECT_EQ(Set(address, 2 * kGranule, Access(kReadWrite)), CUDA_SUCCESS);
  EXPECT_EQ(AccessOf(address), 3u);
  EXPECT_EQ(AccessOf(address + kGranule), 3u);
  EXPECT_EQ(FillAndWait(cu, address, 1, 2 * kGranule), CUDA_SUCCESS);
}

TEST_F(SettingAccess, LastsPerMapping) {
  EXPECT_EQ(Set(address, kGranule, Access(kReadWrite)), CUDA_SUCCESS);
  EXPECT_EQ(AccessOf(address), 3u);
  EXPECT_EQ(AccessOf(address + kGranule), 0u);
}

TEST_F(SettingAccess, TheLastOfSeveralForOneDeviceCounts) {
  const std::array both = {Access(kRead), Access(kReadWrite)};
  EXPECT_EQ(cu.cuMemSetAccess(address, kGranule, both.data(), both.size()),
            CUDA_SUCCESS);
  EXPECT_EQ(AccessOf(address), 3u);
}

TEST_F(SettingAccess, CanTakeItAway) {
  SetAccess(address, kGranule, kReadWrite);
  EXPECT_EQ(Set(address, kGranule, Access(kNoAccess)), CUDA_SUCCESS);
  EXPECT_EQ(AccessOf(address), 0u);
  char byte = 0;
  EXPECT_EQ(cu.cuMemcpyDtoH(&byte, address, 1), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(GettingAccess, IsNoneAfterMapping) { EXPECT_EQ(AccessOf(address), 0u); }

TEST_F(GettingAccess, WorksInsideTheMapping) {
  SetAccess(address, kGranule, kRead);
  EXPECT_EQ(AccessOf(address + 12345), 1u);
}

TEST_F(GettingAccess, NeedsAMappingAndAPlace) {
  EXPECT_EQ(Get(address + 2 * kGranule, Access(kRead)),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Get(address, Access(kRead, 99)), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(Get(address, Access(kRead, 0, static_cast<CUmemLocationType>(0))),
            CUDA_ERROR_INVALID_DEVICE);
  const CUmemLocation device = Access(kRead).location;
  EXPECT_EQ(cu.cuMemGetAccess(nullptr, &device, address),
            CUDA_ERROR_INVALID_VALUE);
}

// Whoever reaches it: only cuMemSetAccess() counts.
TEST_F(GettingAccess, IsNoneOfMemoryThatIsNotMapped) {
  CUdeviceptr block = 0;
  ASSERT_EQ(cu.cuMemAlloc(&block, kGranule), CUDA_SUCCESS);
  EXPECT_EQ(AccessOf(block), 0u);
  EXPECT_EQ(cu.cuMemFree(block), CUDA_SUCCESS);
  void* host = nullptr;
  ASSERT_EQ(cu.cuMemHostAlloc(&host, kGranule, 0), CUDA_SUCCESS);
  EXPECT_EQ(AccessOf(reinterpret_cast<CUdeviceptr>(host)), 0u);
  EXPECT_EQ(cu.cuMemFreeHost(host), CUDA_SUCCESS);
}

TEST_F(GettingAccess, OfTheHostIsNoneOnDeviceMemory) {
  unsigned long long flags = 77;
  const CUmemLocation host =
      Access(kRead, 0, CU_MEM_LOCATION_TYPE_HOST).location;
  EXPECT_EQ(cu.cuMemGetAccess(&flags, &host, address), CUDA_SUCCESS);
  EXPECT_EQ(flags, 0u);
}

class NumaAccess : public Conformance {
 protected:
  NumaAccess()
      : handle(CreateWith(Properties(kFd, CU_MEM_LOCATION_TYPE_HOST_NUMA, 0))),
        address(Reserve()) {
    Map(address, handle);
    SetAccess(address, kGranule);
  }
  void Host(CUmemAccess_flags flags) {
    const CUmemAccessDesc desc =
        Access(flags, 0, CU_MEM_LOCATION_TYPE_HOST_NUMA);
    EXPECT_EQ(cu.cuMemSetAccess(address, kGranule, &desc, 1), CUDA_SUCCESS);
  }
  unsigned long long HostAccess() {
    unsigned long long flags = 77;
    const CUmemLocation host =
        Access(kRead, 0, CU_MEM_LOCATION_TYPE_HOST).location;
    EXPECT_EQ(cu.cuMemGetAccess(&flags, &host, address), CUDA_SUCCESS);
    return flags;
  }
  const CUmemGenericAllocationHandle handle;
  const CUdeviceptr address;
};

TEST_F(NumaAccess, LetsCpuAndDeviceUseOneAddress) {
  Host(kReadWrite);
  auto* words = reinterpret_cast<volatile std::uint64_t*>(address);
  words[0] = 5;
  EXPECT_EQ(Word(address), 5u);
  ASSERT_EQ(FillAndWait(cu, address, 0x11, 16), CUDA_SUCCESS);
  EXPECT_EQ(words[1], 0x1111111111111111u);
}

// Before it is set, nothing is expected: an H200 answers 3, and the CPU faults
// all the same.
TEST_F(NumaAccess, IsAnsweredForTheHost) {
  Host(kRead);
  EXPECT_EQ(HostAccess(), 1u);
  EXPECT_EQ(*reinterpret_cast<volatile char*>(address), 0);
  Host(kReadWrite);
  EXPECT_EQ(HostAccess(), 3u);
}

TEST_F(NumaAccess, CanBeExportedAndImported) {
  const CUmemGenericAllocationHandle imported = Import(Export(handle));
  CUmemAllocationProp prop;
  EXPECT_EQ(cu.cuMemGetAllocationPropertiesFromHandle(&prop, imported),
            CUDA_SUCCESS);
  EXPECT_EQ(prop.location.type, CU_MEM_LOCATION_TYPE_HOST_NUMA);
  EXPECT_EQ(prop.location.id, 0);
  EXPECT_EQ(prop.requestedHandleTypes, 0);
  const CUdeviceptr other = Reserve();
  Map(other, imported);
  SetAccess(other, kGranule);
  ASSERT_EQ(FillAndWait(cu, other, 3, 8), CUDA_SUCCESS);
  EXPECT_EQ(Bytes(address, 2), std::vector<std::uint8_t>(2, 3));
}

}  // namespace
}  // namespace vmm::testing
