// Fabric handles, where there are any. What is expected is documented
// (cuda.h), or follows from what was measured of descriptors; none of it was
// measured, because no machine with an IMEX channel was at hand.
#include <cstring>

#include "tests/conformance/conformance.h"
#include "tests/conformance/descriptors.h"
#include "tests/support/child.h"

namespace vmm::testing {
namespace {

constexpr auto kFabric = CU_MEM_HANDLE_TYPE_FABRIC;

class Fabric : public Conformance {
 protected:
  void SetUp() override {
    if (!HasFabric()) GTEST_SKIP() << "no fabric handles on this machine";
  }
  CUmemFabricHandle ExportFabric(CUmemGenericAllocationHandle memory) {
    CUmemFabricHandle handle = {};
    EXPECT_EQ(cu.cuMemExportToShareableHandle(&handle, memory, kFabric, 0),
              CUDA_SUCCESS);
    return handle;
  }
  CUresult Try(CUmemFabricHandle handle,
               CUmemGenericAllocationHandle* imported) {
    return cu.cuMemImportFromShareableHandle(imported, &handle, kFabric);
  }
  CUmemGenericAllocationHandle ImportFabric(const CUmemFabricHandle& handle) {
    CUmemGenericAllocationHandle imported = 0;
    EXPECT_EQ(Try(handle, &imported), CUDA_SUCCESS);
    Later([this, imported] {
      EXPECT_EQ(cu.cuMemRelease(imported), CUDA_SUCCESS);
    });
    return imported;
  }
};

TEST_F(Fabric, MemoryCanHaveItAloneOrWithADescriptor) {
  CUmemAllocationProp prop;
  for (const int types : {int{kFabric}, kFabric | kFd}) {
    EXPECT_EQ(cu.cuMemGetAllocationPropertiesFromHandle(
                  &prop, Create(kGranule, types)),
              CUDA_SUCCESS);
    EXPECT_EQ(prop.requestedHandleTypes, types);
    EXPECT_EQ(prop.location.id, 0);
  }
}

TEST_F(Fabric, AHandleFillsItsBytesAndNotOneMore) {
  struct {
    CUmemFabricHandle handle;
    unsigned char after[16];
  } space;
  std::memset(&space, 0x5a, sizeof(space));
  ASSERT_EQ(cu.cuMemExportToShareableHandle(
                &space.handle, Create(kGranule, kFabric), kFabric, 0),
            CUDA_SUCCESS);
  for (const unsigned char byte : space.after) EXPECT_EQ(byte, 0x5a);
}

TEST_F(Fabric, AnImportReachesTheSameBytes) {
  const CUmemGenericAllocationHandle memory = Create(kGranule, kFabric);
  const CUmemGenericAllocationHandle imported =
      ImportFabric(ExportFabric(memory));
  EXPECT_NE(imported, memory);
  const CUdeviceptr address = Reserve(2 * kGranule);
  Map(address, memory);
  Map(address + kGranule, imported);
  SetAccess(address, 2 * kGranule);
  ASSERT_EQ(FillAndWait(cu, address, 0x5a, kGranule), CUDA_SUCCESS);
  EXPECT_EQ(Bytes(address + kGranule, 4), std::vector<std::uint8_t>(4, 0x5a));
}

TEST_F(Fabric, BothKindsOfOneMemoryLeadToTheSameBytes) {
  const CUmemGenericAllocationHandle memory = Create(kGranule, kFabric | kFd);
  const CUdeviceptr address = Reserve(2 * kGranule);
  Map(address, ImportFabric(ExportFabric(memory)));
  Map(address + kGranule, Import(Export(memory)));
  SetAccess(address, 2 * kGranule);
  ASSERT_EQ(FillAndWait(cu, address, 0x5b, kGranule), CUDA_SUCCESS);
  EXPECT_EQ(Bytes(address + kGranule, 4), std::vector<std::uint8_t>(4, 0x5b));
}

TEST_F(Fabric, AKindLeftOutAtCreationCannotBeAdded) {
  CUmemFabricHandle handle = {};
  EXPECT_EQ(cu.cuMemExportToShareableHandle(&handle, Create(), kFabric, 0),
            CUDA_ERROR_INVALID_VALUE);
  int fd = -1;
  EXPECT_EQ(ExportTo(cu, &fd, Create(kGranule, kFabric)),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Fabric, AnImportCannotBePassedOn) {
  CUmemFabricHandle handle = {};
  const CUmemGenericAllocationHandle imported =
      ImportFabric(ExportFabric(Create(kGranule, kFabric)));
  EXPECT_EQ(cu.cuMemExportToShareableHandle(&handle, imported, kFabric, 0),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Fabric, NeedsValidArguments) {
  const CUmemGenericAllocationHandle memory = Create(kGranule, kFabric);
  CUmemFabricHandle handle = ExportFabric(memory);
  EXPECT_EQ(cu.cuMemExportToShareableHandle(nullptr, memory, kFabric, 0),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemExportToShareableHandle(&handle, memory, kFabric, 1),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemImportFromShareableHandle(nullptr, &handle, kFabric),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Fabric, AHandleHoldsNothing) {
  constexpr std::size_t kSize = 64 * kMiB;
  const std::size_t before = FreeMemory();
  const CUmemAllocationProp prop = Properties(kFabric);
  CUmemGenericAllocationHandle memory = 0;
  ASSERT_EQ(cu.cuMemCreate(&memory, kSize, &prop, 0), CUDA_SUCCESS);
  const CUmemFabricHandle handle = ExportFabric(memory);
  EXPECT_EQ(before - FreeMemory(), kSize);
  ASSERT_EQ(cu.cuMemRelease(memory), CUDA_SUCCESS);
  EXPECT_EQ(FreeMemory(), before);
  CUmemGenericAllocationHandle imported = 0;
  EXPECT_NE(Try(handle, &imported), CUDA_SUCCESS);
  EXPECT_EQ(imported, 0u);
}

// args: socket. Imports the handle that comes, twice, and doubles a word in it.
int FabricImporter(const std::vector<std::string>& args) {
  const platform::DriverTable& cu = DriverWithContext();
  const int socket = std::stoi(args[0]);
  Checks checks;
  CUmemFabricHandle handle = {};
  checks.ExpectTrue("a handle", ReceiveBytes(socket, &handle, sizeof(handle)));
  for (int i = 0; i < 2; ++i) {
    CUmemGenericAllocationHandle memory = 0;
    CUdeviceptr address = 0;
    const CUmemAccessDesc desc = Access(kReadWrite);
    checks.Expect("import",
                  cu.cuMemImportFromShareableHandle(&memory, &handle, kFabric),
                  CUDA_SUCCESS);
    checks.Expect("reserve",
                  cu.cuMemAddressReserve(&address, kGranule, 0, 0, 0),
                  CUDA_SUCCESS);
    checks.Expect("map", cu.cuMemMap(address, kGranule, 0, memory, 0),
                  CUDA_SUCCESS);
    checks.Expect("access", cu.cuMemSetAccess(address, kGranule, &desc, 1),
                  CUDA_SUCCESS);
    std::uint32_t word = 0;
    checks.Expect("read", cu.cuMemcpyDtoH(&word, address, sizeof(word)),
                  CUDA_SUCCESS);
    word *= 2;
    checks.Expect("write", cu.cuMemcpyHtoD(address, &word, sizeof(word)),
                  CUDA_SUCCESS);
    checks.Expect("synchronize", cu.cuCtxSynchronize(), CUDA_SUCCESS);
    checks.Expect("unmap", cu.cuMemUnmap(address, kGranule), CUDA_SUCCESS);
    checks.Expect("free", cu.cuMemAddressFree(address, kGranule), CUDA_SUCCESS);
    checks.Expect("release", cu.cuMemRelease(memory), CUDA_SUCCESS);
  }
  return checks.failures();
}
const bool kFabricImporter = RegisterChild("fabric_importer", &FabricImporter);

TEST_F(Fabric, AnotherProcessReadsAndWritesTheMemory) {
  const CUmemGenericAllocationHandle memory = Create(kGranule, kFabric);
  const CUdeviceptr address = Reserve();
  Map(address, memory);
  SetAccess(address, kGranule);
  ASSERT_EQ(cu.cuMemsetD32(address, 1000, 1), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  const SocketPair sockets = MakeSocketPair();
  Child child =
      Child::Start("fabric_importer", {std::to_string(sockets.childs)});
  CloseDescriptor(sockets.childs);
  const CUmemFabricHandle handle = ExportFabric(memory);
  EXPECT_TRUE(SendBytes(sockets.mine, &handle, sizeof(handle)));
  EXPECT_EQ(child.Wait(), 0);
  CloseDescriptor(sockets.mine);
  std::uint32_t word = 0;
  EXPECT_EQ(cu.cuMemcpyDtoH(&word, address, sizeof(word)), CUDA_SUCCESS);
  EXPECT_EQ(word, 4000u);
}

}  // namespace
}  // namespace vmm::testing
