// Pools of the host-memory driver at their edges: pointers that name other memory,
// pages with freed blocks on them, room that another stream still has.
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

class HostPoolEdges : public PoolTest {
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

TEST_F(HostPoolEdges, APointerNamesMemoryOfItsPoolAlone) {
  const CUmemoryPool pool = MakePool(kFd);
  const CUmemoryPool far = MakePool(kFd, 1);
  const CUmemoryPool imported = Imported(pool);
  const CUdeviceptr address = Take(pool, kMiB);
  const CUdeviceptr far_address = Take(far, kMiB);
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

// args: descriptor of a pool.
int ImportsAStrangePool(const std::vector<std::string>& args) {
  const platform::DriverTable& cu = DriverWithContext();
  CUmemoryPool pool = nullptr;
  Checks checks;
  checks.Expect("import",
                cu.cuMemPoolImportFromShareableHandle(
                    &pool,
                    reinterpret_cast<void*>(
                        static_cast<std::intptr_t>(std::stoi(args[0]))),
                    kFd, 0),
                kInvalid);
  return checks.failures();
}
const bool kImportsAStrangePool =
    RegisterChild("imports-a-strange-pool", &ImportsAStrangePool);

TEST_F(HostPoolEdges, APoolMeansNothingOnAnotherMachine) {
  int fd = -1;
  ASSERT_EQ(ExportPoolTo(cu, &fd, MakePool(kFd)), CUDA_SUCCESS);
  const int inherited = Inheritable(fd);
  CloseDescriptor(fd);
  EXPECT_EQ(Child::Start("imports-a-strange-pool", {std::to_string(inherited)},
                         {{"VMMSHARE_HOST_INSTANCE", "elsewhere"}})
                .Wait(),
            0);
  CloseDescriptor(inherited);
}

TEST_F(HostPoolEdges, StreamsThatMayNotWaitForEachOtherRunOut) {
  CUmemPoolProps props = PoolProperties();
  props.maxSize = 32 * kMiB;
  const CUmemoryPool pool = MakePoolWith(props);
  const int no = 0;
  ASSERT_EQ(cu.cuMemPoolSetAttribute(
                pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES,
                const_cast<int*>(&no)),
            CUDA_SUCCESS);
  const CUstream first = MakeStream();
  const CUstream second = MakeStream();
  const CUdeviceptr gate = Memory();
  ASSERT_EQ(cu.cuStreamWaitValue64(first, gate, 1, 0), CUDA_SUCCESS);
  const CUdeviceptr block = Take(pool, 32 * kMiB, first);
  ASSERT_EQ(cu.cuMemFreeAsync(block, first), CUDA_SUCCESS);
  CUdeviceptr again = 0;
  EXPECT_EQ(cu.cuMemAllocFromPoolAsync(&again, 32 * kMiB, pool, second),
            CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cu.cuStreamWriteValue64(second, gate, 1, 0), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamSynchronize(first), CUDA_SUCCESS);
  again = Take(pool, 32 * kMiB, second);
  EXPECT_NE(again, 0u);
  EXPECT_EQ(cu.cuMemFreeAsync(again, second), CUDA_SUCCESS);
}

TEST_F(HostPoolEdges, TrimmingKeepsWhatIsUsedAndWhatIsAsked) {
  const CUmemoryPool pool = MakePool();
  ASSERT_EQ(Set(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, SIZE_MAX),
            CUDA_SUCCESS);
  const auto reserved = [&] {
    return Get(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
  };
  const CUdeviceptr used = Take(pool, 32 * kMiB);
  const CUdeviceptr freed = Take(pool, 32 * kMiB);
  EXPECT_EQ(reserved(), 64 * kMiB);
  EXPECT_EQ(cu.cuMemFreeAsync(freed, nullptr), CUDA_SUCCESS);
  for (const std::size_t keep : {64, 40}) {
    EXPECT_EQ(cu.cuMemPoolTrimTo(pool, keep * kMiB), CUDA_SUCCESS);
    EXPECT_EQ(reserved(), 64 * kMiB) << keep;
  }
  EXPECT_EQ(cu.cuMemPoolTrimTo(pool, 0), CUDA_SUCCESS);
  EXPECT_EQ(reserved(), 32 * kMiB);
  EXPECT_EQ(cu.cuMemFreeAsync(used, nullptr), CUDA_SUCCESS);
}

// A page of the first block's, which is freed, and of the second's.
TEST_F(HostPoolEdges, ARangeMayBeginWithWhatWasFreed) {
  int supported = 0;
  ASSERT_EQ(cu.cuDeviceGetAttribute(&supported,
                                    CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, 0),
            CUDA_SUCCESS);
  if (supported == 0) GTEST_SKIP() << "device 0 has no dma-buf";
  const CUmemoryPool pool = MakePool(kFd);
  const CUdeviceptr first = Take(pool, 512);
  const CUdeviceptr second = Take(pool, 512);
  ASSERT_EQ(second, first + 512);
  ASSERT_EQ(first % 4096, 0u);
  int fd = -1;
  const auto get = [&](CUdeviceptr address, std::size_t size) {
    return cu.cuMemGetHandleForAddressRange(
        &fd, address, size, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
  };
  EXPECT_EQ(cu.cuMemFreeAsync(first, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(get(first, 4096), CUDA_SUCCESS);
  CloseDescriptor(fd);
  fd = -1;
  EXPECT_EQ(get(first, 64 * kMiB), kInvalid) << "past all that the pool has";
  EXPECT_EQ(cu.cuMemFreeAsync(second, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(get(first, 4096), kInvalid) << "nothing is there";
  // Nor is the host's memory a device's.
  void* host = nullptr;
  ASSERT_EQ(cu.cuMemHostAlloc(&host, 8192, 0), CUDA_SUCCESS);
  EXPECT_EQ(get(reinterpret_cast<CUdeviceptr>(host), 4096), kInvalid);
  EXPECT_EQ(cu.cuMemFreeHost(host), CUDA_SUCCESS);
  EXPECT_EQ(fd, -1);
}

}  // namespace
}  // namespace vmm::testing
