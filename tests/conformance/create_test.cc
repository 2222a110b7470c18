// cuMemCreate, cuMemRelease, cuMemGetAllocationGranularity.
#include <cstring>

#include "tests/conformance/conformance.h"

namespace vmm::testing {
namespace {

class Creating : public Conformance {
 protected:
  // What cuMemCreate answers; releases what it made.
  CUresult Try(const CUmemAllocationProp& prop, std::size_t size = kGranule) {
    CUmemGenericAllocationHandle handle = 0;
    const CUresult result = cu.cuMemCreate(&handle, size, &prop, 0);
    if (result == CUDA_SUCCESS) {
      EXPECT_EQ(cu.cuMemRelease(handle), CUDA_SUCCESS);
    }
    return result;
  }
};

TEST_F(Creating, TheGranularityIsTwoMebibytesForEveryKind) {
  for (const int types : {0, 1, 2, 4, 8, 9, 3}) {
    std::size_t granularity = 0;
    const CUmemAllocationProp prop = Properties(types);
    EXPECT_EQ(cu.cuMemGetAllocationGranularity(
                  &granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
              CUDA_SUCCESS);
    EXPECT_EQ(granularity, kGranule) << "handle types " << types;
  }
}

TEST_F(Creating, TheGranularityIsAnsweredWithoutACheckOfTheDevice) {
  std::size_t granularity = 0;
  for (const int id : {-1, 99}) {
    const CUmemAllocationProp prop =
        Properties(kFd, CU_MEM_LOCATION_TYPE_DEVICE, id);
    EXPECT_EQ(cu.cuMemGetAllocationGranularity(
                  &granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
              CUDA_SUCCESS);
  }
}

TEST_F(Creating, TheGranularityNeedsValidArguments) {
  std::size_t granularity = 0;
  const CUmemAllocationProp prop = Properties();
  EXPECT_EQ(cu.cuMemGetAllocationGranularity(nullptr, &prop,
                                             CU_MEM_ALLOC_GRANULARITY_MINIMUM),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemGetAllocationGranularity(&granularity, nullptr,
                                             CU_MEM_ALLOC_GRANULARITY_MINIMUM),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemGetAllocationGranularity(
                &granularity, &prop,
                static_cast<CUmemAllocationGranularity_flags>(7)),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Creating, WorksWithoutHandleTypesAndForDescriptors) {
  EXPECT_EQ(Try(Properties(0)), CUDA_SUCCESS);
  EXPECT_EQ(Try(Properties(kFd)), CUDA_SUCCESS);
}

TEST_F(Creating, HandlesOfAnotherSystemAreInvalidHere) {
  EXPECT_EQ(Try(Properties(kForeignFd)), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Try(Properties(CU_MEM_HANDLE_TYPE_WIN32_KMT)),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Try(Properties(kFd | kForeignFd)), CUDA_ERROR_INVALID_VALUE);
}

// The attribute says that fabric handles are supported, and yet, on a machine
// without an IMEX channel, they are not to be had.
TEST(Pitfall01, FabricHandlesAreNotPermittedAlthoughTheAttributeSaysOne) {
  const platform::DriverTable& cu = DriverWithContext();
  int version = 0;
  ASSERT_EQ(cu.cuDriverGetVersion(&version), CUDA_SUCCESS);
  int supported = -1;
  const CUresult asked = cu.cuDeviceGetAttribute(
      &supported, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, 0);
  if (version < 12030) {  // Fabric handles came with it.
    EXPECT_EQ(asked, CUDA_ERROR_INVALID_VALUE);
    return;
  }
  ASSERT_EQ(asked, CUDA_SUCCESS);
  if (supported != 1) GTEST_SKIP() << "the attribute says " << supported;
  CUmemGenericAllocationHandle handle = 0;
  CUmemAllocationProp prop = Properties(CU_MEM_HANDLE_TYPE_FABRIC);
  const CUresult result = cu.cuMemCreate(&handle, kGranule, &prop, 0);
  if (result == CUDA_SUCCESS) {
    cu.cuMemRelease(handle);
    GTEST_SKIP() << "this machine has an IMEX channel";
  }
  EXPECT_EQ(result, CUDA_ERROR_NOT_PERMITTED);
  prop = Properties(kFd | CU_MEM_HANDLE_TYPE_FABRIC);
  EXPECT_EQ(cu.cuMemCreate(&handle, kGranule, &prop, 0),
            CUDA_ERROR_NOT_PERMITTED);
}

TEST_F(Creating, RefusesSizesOffTheGranularity) {
  const CUmemAllocationProp prop = Properties();
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{1}, kGranule + 4096, ~std::size_t{0}}) {
    EXPECT_EQ(Try(prop, size), CUDA_ERROR_INVALID_VALUE) << size;
  }
}

TEST_F(Creating, RefusesMoreThanTheDeviceHas) {
  const CUmemAllocationProp prop = Properties();
  EXPECT_EQ(Try(prop, std::size_t{1} << 40), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(Try(prop, std::size_t{1} << 50), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(Try(prop, ~std::size_t{0} << 21), CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_F(Creating, NeedsValidArguments) {
  CUmemGenericAllocationHandle handle = 0;
  const CUmemAllocationProp prop = Properties();
  EXPECT_EQ(cu.cuMemCreate(nullptr, kGranule, &prop, 0),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemCreate(&handle, kGranule, nullptr, 0),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemCreate(&handle, kGranule, &prop, 1),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Creating, RefusesUnknownDevices) {
  for (const int id : {-1, 99}) {
    EXPECT_EQ(Try(Properties(kFd, CU_MEM_LOCATION_TYPE_DEVICE, id)),
              CUDA_ERROR_INVALID_DEVICE);
  }
}

TEST_F(Creating, OnTheHostOnlyWithoutHandleTypes) {
  for (const int id : {0, 1, 99, -1}) {
    EXPECT_EQ(Try(Properties(kFd, CU_MEM_LOCATION_TYPE_HOST, id)),
              CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(Try(Properties(0, CU_MEM_LOCATION_TYPE_HOST, id)), CUDA_SUCCESS);
  }
}

TEST_F(Creating, OnTheHostIsOnANodeOfIts) {
  const CUmemGenericAllocationHandle handle =
      CreateWith(Properties(0, CU_MEM_LOCATION_TYPE_HOST));
  CUmemAllocationProp told{};
  ASSERT_EQ(cu.cuMemGetAllocationPropertiesFromHandle(&told, handle),
            CUDA_SUCCESS);
  EXPECT_EQ(told.location.type, CU_MEM_LOCATION_TYPE_HOST_NUMA);
}

TEST_F(Creating, OnANumaNodeThatExists) {
  EXPECT_EQ(Try(Properties(kFd, CU_MEM_LOCATION_TYPE_HOST_NUMA, 0)),
            CUDA_SUCCESS);
  EXPECT_EQ(Try(Properties(0, CU_MEM_LOCATION_TYPE_HOST_NUMA, 0)),
            CUDA_SUCCESS);
  for (const int id : {99, -1}) {
    EXPECT_EQ(Try(Properties(kFd, CU_MEM_LOCATION_TYPE_HOST_NUMA, id)),
              CUDA_ERROR_INVALID_VALUE);
  }
}

TEST_F(Creating, RefusesOtherPlaces) {
  for (const int type : {0, 4, 7}) {
    EXPECT_EQ(Try(Properties(kFd, static_cast<CUmemLocationType>(type), 0)),
              CUDA_ERROR_INVALID_VALUE)
        << "location type " << type;
  }
}

TEST_F(Creating, RefusesTypesOtherThanPinned) {
  CUmemAllocationProp prop = Properties();
  prop.type = static_cast<CUmemAllocationType>(0);
  EXPECT_EQ(Try(prop), CUDA_ERROR_INVALID_VALUE);
  prop.type = static_cast<CUmemAllocationType>(2);
  EXPECT_EQ(Try(prop), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Creating, TakesTheRdmaFlag) {
  CUmemAllocationProp prop = Properties();
  prop.allocFlags.gpuDirectRDMACapable = 1;
  EXPECT_EQ(Try(prop), CUDA_SUCCESS);
}

TEST_F(Creating, RefusesFlagsThatNoMemoryHas) {
  CUmemGenericAllocationHandle handle = 0;
  const auto create = [&](const CUmemAllocationProp& prop) {
    return cu.cuMemCreate(&handle, kGranule, &prop, 0);
  };
  CUmemAllocationProp tiles = Properties();
  tiles.allocFlags.usage = CU_MEM_CREATE_USAGE_TILE_POOL;
  EXPECT_EQ(create(tiles), CUDA_ERROR_INVALID_VALUE);
  tiles.requestedHandleTypes = static_cast<CUmemAllocationHandleType>(0);
  EXPECT_EQ(Try(tiles), CUDA_SUCCESS) << "which is not shared";
  CUmemAllocationProp compressed = Properties();
  compressed.allocFlags.compressionType = CU_MEM_ALLOCATION_COMP_GENERIC + 1;
  EXPECT_EQ(create(compressed), CUDA_ERROR_INVALID_VALUE);
  CUmemAllocationProp reserved = Properties();
  reserved.allocFlags.reserved[0] = 1;
  EXPECT_EQ(create(reserved), CUDA_ERROR_INVALID_VALUE);
  CUmemAllocationProp numa = Properties(kFd, CU_MEM_LOCATION_TYPE_HOST_NUMA);
  numa.allocFlags.gpuDirectRDMACapable = 1;
  EXPECT_EQ(create(numa), CUDA_ERROR_INVALID_VALUE);
  numa = Properties(kFd, CU_MEM_LOCATION_TYPE_HOST_NUMA);
  numa.allocFlags.compressionType = CU_MEM_ALLOCATION_COMP_GENERIC;
  EXPECT_EQ(create(numa), CUDA_ERROR_INVALID_VALUE);
  // The device is looked at first.
  CUmemAllocationProp nowhere =
      Properties(kFd, CU_MEM_LOCATION_TYPE_DEVICE, 63);
  nowhere.type = CU_MEM_ALLOCATION_TYPE_INVALID;
  EXPECT_EQ(create(nowhere), CUDA_ERROR_INVALID_DEVICE);
}

TEST_F(Creating, ForgetsWhatItDoesNotKnow) {
  CUmemAllocationProp prop =
      Properties(kFd | 16, CU_MEM_LOCATION_TYPE_DEVICE, 0);
  prop.allocFlags.usage = 64;
  const CUmemGenericAllocationHandle handle = CreateWith(prop);
  CUmemAllocationProp told{};
  ASSERT_EQ(cu.cuMemGetAllocationPropertiesFromHandle(&told, handle),
            CUDA_SUCCESS);
  EXPECT_EQ(static_cast<int>(told.requestedHandleTypes), static_cast<int>(kFd));
  EXPECT_EQ(told.allocFlags.usage, 0);
}

TEST_F(Creating, RemembersTheCompressionAskedFor) {
  CUmemAllocationProp prop = Properties();
  prop.allocFlags.compressionType = CU_MEM_ALLOCATION_COMP_GENERIC;
  const CUmemGenericAllocationHandle handle = CreateWith(prop);
  CUmemAllocationProp answer;
  EXPECT_EQ(cu.cuMemGetAllocationPropertiesFromHandle(&answer, handle),
            CUDA_SUCCESS);
  EXPECT_EQ(answer.allocFlags.compressionType, 1);
  EXPECT_EQ(answer.requestedHandleTypes, kFd);
}

TEST_F(Creating, AnswersTheProperties) {
  const CUmemGenericAllocationHandle handle = Create();
  CUmemAllocationProp answer;
  std::memset(&answer, 0xee, sizeof(answer));
  EXPECT_EQ(cu.cuMemGetAllocationPropertiesFromHandle(&answer, handle),
            CUDA_SUCCESS);
  EXPECT_EQ(answer.type, CU_MEM_ALLOCATION_TYPE_PINNED);
  EXPECT_EQ(answer.requestedHandleTypes, kFd);
  EXPECT_EQ(answer.location.type, CU_MEM_LOCATION_TYPE_DEVICE);
  EXPECT_EQ(answer.location.id, 0);
  EXPECT_EQ(answer.allocFlags.gpuDirectRDMACapable, 0);
  EXPECT_EQ(answer.allocFlags.compressionType, 0);
  EXPECT_EQ(answer.win32HandleMetaData, nullptr);
  EXPECT_EQ(cu.cuMemGetAllocationPropertiesFromHandle(nullptr, handle),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemGetAllocationPropertiesFromHandle(&answer, 0),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Creating, TakesFromTheFreeMemoryAtOnceAndGivesItBack) {
  constexpr std::size_t kSize = 256 * kMiB;
  const std::size_t before = FreeMemory();
  CUmemGenericAllocationHandle handle = 0;
  const CUmemAllocationProp prop = Properties();
  ASSERT_EQ(cu.cuMemCreate(&handle, kSize, &prop, 0), CUDA_SUCCESS);
  EXPECT_EQ(before - FreeMemory(), kSize);
  ASSERT_EQ(cu.cuMemRelease(handle), CUDA_SUCCESS);
  EXPECT_EQ(FreeMemory(), before);
}

TEST_F(Creating, GivesEveryAllocationItsOwnHandle) {
  EXPECT_NE(Create(), Create());
}

TEST_F(Creating, ReleasingNoHandleIsInvalid) {
  EXPECT_EQ(cu.cuMemRelease(0), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Creating, AMappingKeepsTheMemoryAfterRelease) {
  const CUmemAllocationProp prop = Properties();
  CUmemGenericAllocationHandle handle = 0;
  const CUdeviceptr address = Reserve();
  ASSERT_EQ(cu.cuMemCreate(&handle, kGranule, &prop, 0), CUDA_SUCCESS);
  Map(address, handle);
  EXPECT_EQ(cu.cuMemRelease(handle), CUDA_SUCCESS);
  SetAccess(address, kGranule);
  EXPECT_EQ(FillAndWait(cu, address, 7, kGranule), CUDA_SUCCESS);
  EXPECT_EQ(Bytes(address, 4), std::vector<std::uint8_t>(4, 7));
}

using Pitfall22 = Creating;

// Create, retain and import each owe one release.
TEST_F(Pitfall22, ARetainedHandleIsTheSameAndOwesItsOwnRelease) {
  const CUmemAllocationProp prop = Properties();
  CUmemGenericAllocationHandle handle = 0;
  CUmemGenericAllocationHandle retained = 0;
  const std::size_t before = FreeMemory();
  ASSERT_EQ(cu.cuMemCreate(&handle, kGranule, &prop, 0), CUDA_SUCCESS);
  const CUdeviceptr address = Reserve();
  ASSERT_EQ(cu.cuMemMap(address, kGranule, 0, handle, 0), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuMemRetainAllocationHandle(
                &retained, reinterpret_cast<void*>(address + 5)),
            CUDA_SUCCESS);
  EXPECT_EQ(retained, handle);
  EXPECT_EQ(cu.cuMemUnmap(address, kGranule), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemRelease(handle), CUDA_SUCCESS);
  EXPECT_EQ(before - FreeMemory(), kGranule) << "one release still owed";
  EXPECT_EQ(cu.cuMemRelease(retained), CUDA_SUCCESS);
  EXPECT_EQ(FreeMemory(), before);
}

}  // namespace
}  // namespace vmm::testing
