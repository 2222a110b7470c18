// Pointers of pools, and legacy handles, as the host-memory driver takes them from
// another process: what they name, and what they only seem to.
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "tests/conformance/bytes_as_text.h"
#include "tests/conformance/descriptors.h"
#include "tests/conformance/host_driver_test.h"
#include "tests/conformance/pool_test_base.h"
#include "tests/support/child.h"

namespace vmm::testing {
namespace {

// Both travel as words. Of a legacy handle: a magic number, the process, the memory,
// its number, the size. Of a pointer: a magic number, the pool, the process, the
// memory, its number, the place, the size.
template <typename Data>
std::uint64_t WordOf(const Data& data, int index) {
  std::uint64_t word = 0;
  std::memcpy(&word, reinterpret_cast<const char*>(&data) + 8 * index, 8);
  return word;
}
template <typename Data>
void SetWord(Data* data, int index, std::uint64_t word) {
  std::memcpy(reinterpret_cast<char*>(data) + 8 * index, &word, 8);
}

class HostPointers : public PoolTest {
 protected:
  // `pool` as another process has it; destroyed at the end of the test.
  CUmemoryPool Imported(CUmemoryPool pool) {
    int fd = -1;
    CUmemoryPool imported = nullptr;
    EXPECT_EQ(ExportPoolTo(cu, &fd, pool), CUDA_SUCCESS);
    EXPECT_EQ(
        cu.cuMemPoolImportFromShareableHandle(
            &imported, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)),
            kFd, 0),
        CUDA_SUCCESS);
    CloseDescriptor(fd);
    Later([this, imported] {
      EXPECT_EQ(cu.cuMemPoolDestroy(imported), CUDA_SUCCESS);
    });
    return imported;
  }
  CUmemPoolPtrExportData ExportPointer(CUdeviceptr address) {
    CUmemPoolPtrExportData data{};
    EXPECT_EQ(cu.cuMemPoolExportPointer(&data, address), CUDA_SUCCESS);
    return data;
  }
};

TEST_F(HostPointers, NameMemoryOfItsPoolAlone) {
  const CUmemoryPool pool = MakePool(kFd);
  const CUmemoryPool remote = MakePool(kFd, 1);
  const CUmemoryPool imported = Imported(pool);
  const CUdeviceptr address = Take(pool, kMiB);
  const CUdeviceptr far_address = Take(remote, kMiB);
  CUdeviceptr block = 0;
  CUipcMemHandle legacy{};
  ASSERT_EQ(cu.cuMemAlloc(&block, kMiB), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuIpcGetMemHandle(&legacy, block), CUDA_SUCCESS);
  const CUmemPoolPtrExportData good = ExportPointer(address);
  CUdeviceptr got = 0;
  const auto import = [&](CUmemPoolPtrExportData data) {
    return cu.cuMemPoolImportPointer(&got, imported, &data);
  };
  CUmemPoolPtrExportData other_device = ExportPointer(far_address);
  SetWord(&other_device, 1, WordOf(good, 1));
  CUmemPoolPtrExportData no_pool = good;
  SetWord(&no_pool, 3, WordOf(legacy, 2));
  SetWord(&no_pool, 4, WordOf(legacy, 3));
  CUmemPoolPtrExportData nothing = good;
  SetWord(&nothing, 6, 0);
  CUmemPoolPtrExportData between = good;
  SetWord(&between, 5, WordOf(good, 5) + 1);
  CUmemPoolPtrExportData smaller = good;
  SetWord(&smaller, 6, 512);
  CUmemPoolPtrExportData larger = good;
  SetWord(&larger, 5, WordOf(good, 5) + 2 * kMiB);
  SetWord(&larger, 6, std::uint64_t{1} << 40);
  CUmemPoolPtrExportData past = good;
  SetWord(&past, 5, std::uint64_t{1} << 40);
  ExpectAnswers({
      {"another pool's", import(ExportPointer(far_address)), kInvalid},
      {"another device's", import(other_device), kInvalid},
      {"a block", import(no_pool), kInvalid},
      {"of no bytes", import(nothing), kInvalid},
      {"as it is", import(good), CUDA_SUCCESS},
      {"between places", import(between), kInvalid},
      {"another size there", import(smaller), kInvalid},
      {"more than there is", import(larger), kInvalid},
      {"past its end", import(past), kInvalid},
      {"from an imported one",
       cu.cuMemAllocFromPoolAsync(&block, 1, imported, nullptr), kInvalid},
      {"for others", cu.cuDeviceSetMemPool(0, imported), kInvalid},
  });
  EXPECT_EQ(cu.cuMemFree(got), CUDA_SUCCESS);
  // The other way round, where the handle is another process's.
  CUipcMemHandle pooled = legacy;
  SetWord(&pooled, 2, WordOf(good, 3));
  SetWord(&pooled, 3, WordOf(good, 4));
  CUipcMemHandle of_nothing = legacy;
  SetWord(&of_nothing, 4, 0);
  for (const CUipcMemHandle& bad : {pooled, of_nothing}) {
    EXPECT_EQ(Child::Start("ipc_opens_on",
                           {ToText(bad), "0", std::to_string(kInvalid)})
                  .Wait(),
              0);
  }
  EXPECT_EQ(cu.cuMemFree(block), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemFreeAsync(address, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemFreeAsync(far_address, nullptr), CUDA_SUCCESS);
}

TEST_F(HostPointers, LeadToTheirOwnPartOfTheirPool) {
  const CUmemoryPool pool = MakePool(kFd);
  const CUmemoryPool imported = Imported(pool);
  for (const unsigned char value : {1, 2}) {
    const CUdeviceptr address = Take(pool, 32 * kMiB);
    EXPECT_EQ(FillAndWait(cu, address, value, 8), CUDA_SUCCESS);
    CUmemPoolPtrExportData data = ExportPointer(address);
    CUdeviceptr got = 0;
    ASSERT_EQ(cu.cuMemPoolImportPointer(&got, imported, &data), CUDA_SUCCESS);
    EXPECT_EQ(Bytes(got, 8), std::vector<std::uint8_t>(8, value));
    Later([this, address, got] {
      EXPECT_EQ(cu.cuMemFree(got), CUDA_SUCCESS);
      EXPECT_EQ(cu.cuMemFreeAsync(address, nullptr), CUDA_SUCCESS);
    });
  }
}

TEST_F(HostPointers, AreTakenAgainWhenTheWorkBeforeTheirFreeIsDone) {
  const CUmemoryPool pool = MakePool(kFd);
  const CUmemoryPool imported = Imported(pool);
  const CUdeviceptr address = Take(pool, kMiB);
  CUmemPoolPtrExportData data = ExportPointer(address);
  const CUdeviceptr gate = Memory();
  const CUstream stream = MakeStream();
  CUdeviceptr got = 0;
  const auto import = [&] {
    return cu.cuMemPoolImportPointer(&got, imported, &data);
  };
  ASSERT_EQ(import(), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamWaitValue64(stream, gate, 1, 0), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemsetD8Async(got, 1, 8, stream), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemFreeAsync(got, stream), CUDA_SUCCESS);
  EXPECT_EQ(import(), kInvalid) << "a stream still uses it";
  EXPECT_EQ(cu.cuStreamWriteValue64(MakeStream(), gate, 1, 0), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_EQ(import(), CUDA_SUCCESS);
  EXPECT_EQ(Bytes(got, 8), std::vector<std::uint8_t>(8, 1));
  EXPECT_EQ(cu.cuMemFree(got), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemFreeAsync(address, nullptr), CUDA_SUCCESS);
}

// args: a legacy handle.
int OpensInTwoContexts(const std::vector<std::string>& args) {
  const platform::DriverTable& cu = DriverWithContext();
  const auto handle = FromText<CUipcMemHandle>(args[0]);
  CUdeviceptr first = 0;
  CUdeviceptr again = 0;
  CUdeviceptr second = 0;
  CUcontext there = nullptr;
  Checks checks;
  checks.Expect("open", cu.cuIpcOpenMemHandle(&first, handle, 1), CUDA_SUCCESS);
  checks.Expect("open", cu.cuIpcOpenMemHandle(&again, handle, 1), CUDA_SUCCESS);
  checks.Expect("retain", cu.cuDevicePrimaryCtxRetain(&there, 1), CUDA_SUCCESS);
  checks.Expect("set", cu.cuCtxSetCurrent(there), CUDA_SUCCESS);
  checks.Expect("open", cu.cuIpcOpenMemHandle(&second, handle, 1),
                CUDA_SUCCESS);
  checks.ExpectTrue("one place each", first == again && first != second);
  checks.ExpectTrue("opened three times", LedgerNow().legacy_opens == 3);
  for (const CUdeviceptr address : {first, again, second}) {
    checks.Expect("close", cu.cuIpcCloseMemHandle(address), CUDA_SUCCESS);
  }
  checks.ExpectTrue("none", LedgerNow().legacy_opens == 0);
  return checks.failures();
}
const bool kOpensInTwo =
    RegisterChild("opens-in-two-contexts", &OpensInTwoContexts);

TEST_F(HostPointers, OfTheLegacyKindHaveOnePlaceInEachContext) {
  CUdeviceptr block = 0;
  CUipcMemHandle handle{};
  ASSERT_EQ(cu.cuMemAlloc(&block, kMiB), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuIpcGetMemHandle(&handle, block), CUDA_SUCCESS);
  EXPECT_EQ(Child::Start("opens-in-two-contexts", {ToText(handle)}).Wait(), 0);
  EXPECT_EQ(cu.cuMemFree(block), CUDA_SUCCESS);
}

}  // namespace
}  // namespace vmm::testing
