// cuMemExportToShareableHandle, cuMemImportFromShareableHandle.
#include <cstring>

#include "tests/conformance/conformance.h"
#include "tests/conformance/descriptors.h"

namespace vmm::testing {
namespace {

class Exporting : public Conformance {
 protected:
  CUresult Try(CUmemGenericAllocationHandle handle, int type,
               unsigned long long flags = 0) {
    alignas(8) char space[64] = {};
    return cu.cuMemExportToShareableHandle(
        space, handle, static_cast<CUmemAllocationHandleType>(type), flags);
  }
};
class Importing : public Conformance {
 protected:
  CUresult Try(int fd, int type = kFd) {
    CUmemGenericAllocationHandle handle = 0;
    const CUresult result = cu.cuMemImportFromShareableHandle(
        &handle, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)),
        static_cast<CUmemAllocationHandleType>(type));
    EXPECT_EQ(handle, 0u);
    return result;
  }
};

TEST_F(Exporting, GivesANewDescriptorEachTime) {
  const CUmemGenericAllocationHandle handle = Create();
  const int first = Export(handle);
  const int second = Export(handle);
  EXPECT_GE(first, 0);
  EXPECT_NE(first, second);
}

TEST(Pitfall12, AnExportedDescriptorClosesOnExec) {
  const platform::DriverTable& cu = DriverWithContext();
  const CUmemAllocationProp prop = Properties();
  CUmemGenericAllocationHandle handle = 0;
  int fd = -1;
  ASSERT_EQ(cu.cuMemCreate(&handle, kGranule, &prop, 0), CUDA_SUCCESS);
  ASSERT_EQ(ExportTo(cu, &fd, handle), CUDA_SUCCESS);
  EXPECT_TRUE(ClosesOnExec(fd));
  CloseDescriptor(fd);
  EXPECT_EQ(cu.cuMemRelease(handle), CUDA_SUCCESS);
}

using Pitfall05 = Exporting;

TEST_F(Pitfall05, AKindLeftOutAtCreationCannotBeAdded) {
  EXPECT_EQ(Try(Create(kGranule, 0), kFd), CUDA_ERROR_INVALID_VALUE);
  const CUmemGenericAllocationHandle handle = Create();
  EXPECT_EQ(Try(handle, kForeignFd), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Try(handle, CU_MEM_HANDLE_TYPE_FABRIC), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Exporting, NeedsValidArguments) {
  const CUmemGenericAllocationHandle handle = Create();
  EXPECT_EQ(Try(handle, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Try(handle, 3), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Try(handle, kFd, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Try(0, kFd), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemExportToShareableHandle(nullptr, handle, kFd, 0),
            CUDA_ERROR_INVALID_VALUE);
}

using Pitfall14 = Exporting;

TEST_F(Pitfall14, ADescriptorAlonePinsTheMemory) {
  constexpr std::size_t kSize = 64 * kMiB;
  const std::size_t before = FreeMemory();
  const CUmemAllocationProp prop = Properties();
  CUmemGenericAllocationHandle handle = 0;
  ASSERT_EQ(cu.cuMemCreate(&handle, kSize, &prop, 0), CUDA_SUCCESS);
  int fd = -1;
  ASSERT_EQ(ExportTo(cu, &fd, handle), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuMemRelease(handle), CUDA_SUCCESS);
  EXPECT_EQ(before - FreeMemory(), kSize);
  CloseDescriptor(fd);
  EXPECT_EQ(FreeMemory(), before);
}

using Pitfall06 = Importing;

TEST_F(Pitfall06, DescriptorsOfOtherThingsAreNotMemory) {
  for (const auto& [name, fd] : DescriptorsThatAreNoMemory()) {
    EXPECT_EQ(Try(fd), CUDA_ERROR_UNKNOWN) << name;
    if (fd > 0 && fd < 9999) CloseDescriptor(fd);
  }
}

TEST_F(Importing, KnowsDescriptorsOnly) {
  const int fd = Export(Create());
  if (kForeignFd == CU_MEM_HANDLE_TYPE_WIN32) {
    EXPECT_EQ(Try(fd, kForeignFd), CUDA_ERROR_NOT_SUPPORTED);
  }
  EXPECT_EQ(Try(fd, CU_MEM_HANDLE_TYPE_WIN32_KMT), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(Try(fd, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemImportFromShareableHandle(
                nullptr, reinterpret_cast<void*>(std::intptr_t{fd}), kFd),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Importing, KnowsNoFabricHandlesWithoutAChannel) {
  if (HasFabric()) GTEST_SKIP() << "this machine has an IMEX channel";
  char fabric[64] = {};
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_EQ(cu.cuMemImportFromShareableHandle(&handle, fabric,
                                              CU_MEM_HANDLE_TYPE_FABRIC),
            CUDA_ERROR_NOT_SUPPORTED);
}

TEST_F(Importing, GivesADifferentHandleEachTime) {
  const CUmemGenericAllocationHandle handle = Create();
  const int fd = Export(handle);
  const CUmemGenericAllocationHandle first = Import(fd);
  const CUmemGenericAllocationHandle second = Import(fd);
  EXPECT_NE(first, handle);
  EXPECT_NE(first, second);
}

TEST_F(Importing, LeavesTheDescriptorOpen) {
  const int fd = Export(Create());
  Import(fd);
  EXPECT_TRUE(ClosesOnExec(fd));
  Import(fd);
}

TEST_F(Importing, ReachesTheSameBytes) {
  const CUmemGenericAllocationHandle handle = Create();
  const CUmemGenericAllocationHandle imported = Import(Export(handle));
  const CUdeviceptr address = Reserve(2 * kGranule);
  Map(address, handle);
  Map(address + kGranule, imported);
  SetAccess(address, 2 * kGranule);
  ASSERT_EQ(FillAndWait(cu, address, 0x5a, kGranule), CUDA_SUCCESS);
  EXPECT_EQ(Bytes(address + kGranule, 4), std::vector<std::uint8_t>(4, 0x5a));
}

TEST_F(Importing, DoesNotSayWhichKindsItWasMadeFor) {
  const CUmemGenericAllocationHandle imported = Import(Export(Create()));
  CUmemAllocationProp prop;
  std::memset(&prop, 0xee, sizeof(prop));
  EXPECT_EQ(cu.cuMemGetAllocationPropertiesFromHandle(&prop, imported),
            CUDA_SUCCESS);
  EXPECT_EQ(prop.type, CU_MEM_ALLOCATION_TYPE_PINNED);
  EXPECT_EQ(prop.requestedHandleTypes, 0);
  EXPECT_EQ(prop.location.type, CU_MEM_LOCATION_TYPE_DEVICE);
  EXPECT_EQ(prop.location.id, 0);
}

TEST_F(Importing, CannotBePassedOn) {
  const CUmemGenericAllocationHandle imported = Import(Export(Create()));
  int fd = -1;
  EXPECT_EQ(ExportTo(cu, &fd, imported), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Importing, OutlivesTheExportersHandle) {
  const CUmemAllocationProp prop = Properties();
  CUmemGenericAllocationHandle handle = 0;
  ASSERT_EQ(cu.cuMemCreate(&handle, kGranule, &prop, 0), CUDA_SUCCESS);
  int fd = -1;
  ASSERT_EQ(ExportTo(cu, &fd, handle), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuMemRelease(handle), CUDA_SUCCESS);
  const CUmemGenericAllocationHandle imported = Import(fd);
  CloseDescriptor(fd);
  const CUdeviceptr address = Reserve();
  Map(address, imported);
  SetAccess(address, kGranule);
  EXPECT_EQ(FillAndWait(cu, address, 1, kGranule), CUDA_SUCCESS);
}

TEST_F(Importing, CanBeRetainedFromItsMapping) {
  const CUmemGenericAllocationHandle imported = Import(Export(Create()));
  const CUdeviceptr address = Reserve();
  Map(address, imported);
  CUmemGenericAllocationHandle retained = 0;
  EXPECT_EQ(cu.cuMemRetainAllocationHandle(&retained,
                                           reinterpret_cast<void*>(address)),
            CUDA_SUCCESS);
  EXPECT_EQ(retained, imported);
  EXPECT_EQ(cu.cuMemRelease(retained), CUDA_SUCCESS);
}

}  // namespace
}  // namespace vmm::testing
