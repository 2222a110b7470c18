// Stream-ordered pools between processes. Documented, not measured.
#include "platform/os/os_handle.h"
#include "tests/conformance/bytes_as_text.h"
#include "tests/conformance/descriptors.h"
#include "tests/conformance/pool_test_base.h"
#include "tests/support/child.h"

namespace vmm::testing {
namespace {

constexpr std::size_t kSize = 3 * kMiB;

class SharedPools : public PoolTest {
 protected:
  CUmemPoolPtrExportData ExportPointer(CUdeviceptr address) {
    CUmemPoolPtrExportData data{};
    EXPECT_EQ(cu.cuMemPoolExportPointer(&data, address), CUDA_SUCCESS);
    return data;
  }
  CUdeviceptr TakeOnes(CUmemoryPool pool) {
    const CUdeviceptr address = Take(pool, kSize);
    EXPECT_EQ(FillAndWait(cu, address, 1, kSize), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuCtxSynchronize(), CUDA_SUCCESS);
    return address;
  }
};

// Expects kSize bytes of 1 at `address` and writes `value` over them.
void ReadAndWrite(const platform::DriverTable& cu, Checks* checks,
                  CUdeviceptr address, unsigned char value) {
  std::vector<std::uint8_t> bytes(kSize);
  checks->Expect("read", cu.cuMemcpyDtoH(bytes.data(), address, kSize),
                 CUDA_SUCCESS);
  checks->ExpectTrue("all ones", bytes == std::vector<std::uint8_t>(kSize, 1));
  checks->Expect("write", FillAndWait(cu, address, value, kSize), CUDA_SUCCESS);
  checks->Expect("synchronize", cu.cuCtxSynchronize(), CUDA_SUCCESS);
}

// args: descriptor of a pool, two pointers of it.
int PoolImporter(const std::vector<std::string>& args) {
  const platform::DriverTable& cu = DriverWithContext();
  Checks checks;
  CUmemoryPool pool = nullptr;
  checks.Expect("import the pool",
                cu.cuMemPoolImportFromShareableHandle(
                    &pool,
                    reinterpret_cast<void*>(
                        static_cast<std::intptr_t>(std::stoi(args[0]))),
                    kFd, 0),
                CUDA_SUCCESS);
  if (checks.failures() != 0) return 100;
  auto first_data = FromText<CUmemPoolPtrExportData>(args[1]);
  auto second_data = FromText<CUmemPoolPtrExportData>(args[2]);
  CUdeviceptr first = 0;
  CUdeviceptr second = 0;
  checks.Expect("import a pointer",
                cu.cuMemPoolImportPointer(&first, pool, &first_data),
                CUDA_SUCCESS);
  checks.Expect("import another",
                cu.cuMemPoolImportPointer(&second, pool, &second_data),
                CUDA_SUCCESS);
  if (checks.failures() != 0) return 100;
  ReadAndWrite(cu, &checks, first, 8);
  ReadAndWrite(cu, &checks, second, 9);
  CUmemoryPool of = nullptr;
  checks.Expect(
      "ask for the pool",
      cu.cuPointerGetAttribute(&of, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, first),
      CUDA_SUCCESS);
  checks.ExpectTrue("the imported pool", of == pool);

  const std::vector<CUresult> refused = {CUDA_ERROR_INVALID_VALUE,
                                         CUDA_ERROR_NOT_SUPPORTED};
  CUdeviceptr other = 0;
  checks.ExpectOneOf("allocate from an imported pool",
                     cu.cuMemAllocFromPoolAsync(&other, 4096, pool, nullptr),
                     refused);
  checks.ExpectOneOf("make an imported pool current",
                     cu.cuDeviceSetMemPool(0, pool), refused);
  // What is imported again is not counted.
  CUmemoryPool same = nullptr;
  checks.Expect("import the pool again",
                cu.cuMemPoolImportFromShareableHandle(
                    &same,
                    reinterpret_cast<void*>(
                        static_cast<std::intptr_t>(std::stoi(args[0]))),
                    kFd, 0),
                CUDA_SUCCESS);
  checks.ExpectTrue("the same one", same == pool);
  checks.Expect("import a pointer again",
                cu.cuMemPoolImportPointer(&other, pool, &second_data),
                CUDA_SUCCESS);
  checks.ExpectTrue("at the same address", other == second);
  checks.Expect("destroy a pool of which pointers are open",
                cu.cuMemPoolDestroy(pool), CUDA_ERROR_INVALID_VALUE);
  checks.Expect("free in stream order", cu.cuMemFreeAsync(first, nullptr),
                CUDA_SUCCESS);
  checks.Expect("synchronize", cu.cuCtxSynchronize(), CUDA_SUCCESS);
  checks.Expect("free", cu.cuMemFree(second), CUDA_SUCCESS);
  checks.Expect("use what was imported twice and freed once",
                cu.cuMemsetD8(second, 1, 1), CUDA_ERROR_INVALID_VALUE);
  checks.Expect("destroy", cu.cuMemPoolDestroy(pool), CUDA_SUCCESS);
  return checks.failures();
}
const bool kPoolImporter = RegisterChild("pool_importer", &PoolImporter);

TEST_F(SharedPools, ShareTheirMemoryBothWays) {
  const CUmemoryPool pool = MakePool(kFd);
  const CUdeviceptr first = TakeOnes(pool);
  const CUdeviceptr second = TakeOnes(pool);
  int exported = -1;
  ASSERT_EQ(ExportPoolTo(cu, &exported, pool), CUDA_SUCCESS);
  const int fd = Inheritable(exported);
  CloseDescriptor(exported);
  EXPECT_EQ(Child::Start("pool_importer",
                         {std::to_string(fd), ToText(ExportPointer(first)),
                          ToText(ExportPointer(second))})
                .Wait(),
            0);
  // Each importer does as well.
  EXPECT_EQ(Bytes(first, kSize), std::vector<std::uint8_t>(kSize, 8));
  EXPECT_EQ(Bytes(second, kSize), std::vector<std::uint8_t>(kSize, 9));
  ASSERT_EQ(FillAndWait(cu, first, 1, kSize), CUDA_SUCCESS);
  ASSERT_EQ(FillAndWait(cu, second, 1, kSize), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(Child::Start("pool_importer",
                         {std::to_string(fd), ToText(ExportPointer(second)),
                          ToText(ExportPointer(first))})
                .Wait(),
            0);
  EXPECT_EQ(Bytes(second, 1)[0], 8);
  CloseDescriptor(fd);
  EXPECT_EQ(cu.cuMemFreeAsync(first, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemFreeAsync(second, nullptr), CUDA_SUCCESS);
}

TEST_F(SharedPools, AreOnlyThoseMadeForIt) {
  const CUmemoryPool private_pool = MakePool();
  for (const CUmemoryPool pool : {DefaultPool(), private_pool}) {
    int fd = -1;
    EXPECT_EQ(ExportPoolTo(cu, &fd, pool), CUDA_ERROR_INVALID_VALUE);
    const CUdeviceptr address = Take(pool, kSize);
    CUmemPoolPtrExportData data{};
    EXPECT_EQ(cu.cuMemPoolExportPointer(&data, address),
              CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cu.cuMemFreeAsync(address, nullptr), CUDA_SUCCESS);
  }
}

TEST_F(SharedPools, OnlyTheirPointersAreExported) {
  CUmemPoolPtrExportData data{};
  EXPECT_EQ(cu.cuMemPoolExportPointer(&data, Memory()),
            CUDA_ERROR_INVALID_VALUE);
  CUdeviceptr block = 0;
  ASSERT_EQ(cu.cuMemAlloc(&block, kSize), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemPoolExportPointer(&data, block), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemFree(block), CUDA_SUCCESS);
}

TEST_F(SharedPools, ADescriptorOfMemoryIsNoneOfAPool) {
  const int memory = Export(Create());
  CUmemoryPool pool = nullptr;
  EXPECT_NE(
      cu.cuMemPoolImportFromShareableHandle(
          &pool, reinterpret_cast<void*>(static_cast<std::intptr_t>(memory)),
          kFd, 0),
      CUDA_SUCCESS);
}

TEST_F(SharedPools, ADescriptorOfAPoolIsNoneOfMemory) {
  int fd = -1;
  ASSERT_EQ(ExportPoolTo(cu, &fd, MakePool(kFd)), CUDA_SUCCESS);
  // A handle of Windows is inherited only where its maker asks for it.
  EXPECT_EQ(ClosesOnExec(fd), !platform::kNativeHandleIsPosixFd)
      << "unlike a descriptor of memory";
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_NE(cu.cuMemImportFromShareableHandle(
                &handle,
                reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)), kFd),
            CUDA_SUCCESS);
  CloseDescriptor(fd);
}

}  // namespace
}  // namespace vmm::testing
