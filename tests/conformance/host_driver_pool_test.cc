// Pools and legacy IPC of the host-memory driver, where the model has its own
// rules.
#include <cstring>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/conformance/bytes_as_text.h"
#include "tests/conformance/descriptors.h"
#include "tests/conformance/host_driver_test.h"
#include "tests/conformance/pool_test_base.h"
#include "tests/support/child.h"
#include "tests/support/emulator.h"
#include "tests/support/host_instance.h"

namespace vmm::testing {
namespace {

constexpr unsigned kLazy = CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS;

void* Shareable(int fd) {
  return reinterpret_cast<void*>(static_cast<std::intptr_t>(fd));
}

using HostPools = PoolTest;
class HostPoolsDeathTest : public PoolTest {
 protected:
  void SetUp() override {
    if (IsEmulated()) GTEST_SKIP() << kStartsNothing;
  }
};

TEST_F(HostPoolsDeathTest, FreeingTwiceStopsTheProgram) {
  CUdeviceptr address = 0;
  ASSERT_EQ(cu.cuMemAllocAsync(&address, kMiB, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuMemFreeAsync(address, nullptr), CUDA_SUCCESS);
  EXPECT_DEATH(cu.cuMemFreeAsync(address, nullptr),
               "cuMemFreeAsync: the memory at 0x\\w+ was already freed");
  // Also when the pool has given the memory back.
  ASSERT_EQ(cu.cuCtxSynchronize(), CUDA_SUCCESS);
  ASSERT_EQ(Get(DefaultPool(), CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 0u);
  EXPECT_DEATH(cu.cuMemFreeAsync(address, nullptr),
               "cuMemFreeAsync: the memory at 0x\\w+ was already freed");
}

TEST_F(HostPoolsDeathTest, UsingADestroyedPoolStopsTheProgram) {
  const CUmemPoolProps props = PoolProperties();
  CUmemoryPool pool = nullptr;
  ASSERT_EQ(cu.cuMemPoolCreate(&pool, &props), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuMemPoolDestroy(pool), CUDA_SUCCESS);
  CUdeviceptr address = 0;
  EXPECT_DEATH(cu.cuMemPoolDestroy(pool),
               "cuMemPoolDestroy: pool 0x\\w+ was already released");
  EXPECT_DEATH(cu.cuMemAllocFromPoolAsync(&address, kMiB, pool, nullptr),
               "cuMemAllocFromPoolAsync: pool 0x\\w+ was already released");
}

TEST_F(HostPools, WhatNoPoolGaveIsRefusedByTheFree) {
  EXPECT_EQ(cu.cuMemFreeAsync(Memory(), nullptr), CUDA_ERROR_INVALID_VALUE);
  const CUdeviceptr address = Take(DefaultPool(), kMiB);
  EXPECT_EQ(cu.cuMemFreeAsync(address + 1, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemFreeAsync(address, nullptr), CUDA_SUCCESS);
}

TEST_F(HostPools, CountAgainstTheBudget) {
  std::size_t free = 0;
  std::size_t total = 0;
  ASSERT_EQ(cu.cuMemGetInfo(&free, &total), CUDA_SUCCESS);
  MakePool(kFd);
  EXPECT_EQ(FreeMemory(), free) << "a pool that is empty takes nothing";
  const CUdeviceptr address = Take(DefaultPool(), 40 * kMiB);
  EXPECT_EQ(FreeMemory(), free - 40 * kMiB);
  CUdeviceptr too_much = 0;
  EXPECT_EQ(cu.cuMemAllocAsync(&too_much, free, nullptr),
            CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cu.cuMemFreeAsync(address, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(FreeMemory(), free);
}

// Fills the budget with one block, which a stream that waits still uses; then
// asks for as much in another stream.
TEST_F(HostPools, WaitForAnotherStreamsMemoryWhenThereIsNoOther) {
  CUmemPoolProps props = PoolProperties();
  props.maxSize = 64 * kMiB;
  const CUmemoryPool pool = MakePoolWith(props);
  const CUstream first = MakeStream();
  const CUstream second = MakeStream();
  const CUdeviceptr gate = Memory();
  ASSERT_EQ(cu.cuStreamWaitValue64(first, gate, 1, 0), CUDA_SUCCESS);
  const CUdeviceptr block = Take(pool, 64 * kMiB, first);
  ASSERT_EQ(cu.cuMemsetD8Async(block, 1, 8, first), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuMemFreeAsync(block, first), CUDA_SUCCESS);
  const CUdeviceptr again = Take(pool, 64 * kMiB, second);
  EXPECT_EQ(again, block);
  ASSERT_EQ(cu.cuMemsetD8Async(again, 2, 8, second), CUDA_SUCCESS);
  // Time for a stream that does not wait to end.
  const absl::Time end = absl::Now() + absl::Milliseconds(20);
  CUresult query = CUDA_ERROR_NOT_READY;
  while (query == CUDA_ERROR_NOT_READY && absl::Now() < end) {
    query = cu.cuStreamQuery(second);
  }
  EXPECT_EQ(query, CUDA_ERROR_NOT_READY);
  const std::uint64_t one = 1;
  ASSERT_EQ(cu.cuMemcpyHtoD(gate, &one, sizeof(one)), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamSynchronize(first), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamSynchronize(second), CUDA_SUCCESS);
  EXPECT_EQ(Bytes(again, 8), std::vector<std::uint8_t>(8, 2));
  EXPECT_EQ(cu.cuMemFreeAsync(again, second), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamSynchronize(second), CUDA_SUCCESS);
}

TEST_F(HostPools, ManyBlocksDoNotOverlapAndAllComeBack) {
  const CUmemoryPool pool = MakePool();
  std::vector<std::pair<CUdeviceptr, unsigned char>> live;
  unsigned random = 1;
  for (int i = 0; i < 2000; ++i) {
    random = random * 1664525 + 1013904223;
    if (live.size() > 100 || (!live.empty() && random >> 31 == 0)) {
      const std::size_t which = (random >> 8) % live.size();
      ASSERT_EQ(Bytes(live[which].first, 1)[0], live[which].second);
      ASSERT_EQ(cu.cuMemFreeAsync(live[which].first, nullptr), CUDA_SUCCESS);
      live[which] = live.back();
      live.pop_back();
    } else {
      const std::size_t size = 1 + (random >> 12) % (256 << 10);
      const auto value = static_cast<unsigned char>(i);
      live.push_back({Take(pool, size), value});
      ASSERT_EQ(FillAndWait(cu, live.back().first, value, size), CUDA_SUCCESS);
    }
  }
  for (const auto& [address, value] : live) {
    EXPECT_EQ(Bytes(address, 1)[0], value);
    EXPECT_EQ(cu.cuMemFreeAsync(address, nullptr), CUDA_SUCCESS);
  }
  EXPECT_EQ(Get(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 0u);
  EXPECT_EQ(cu.cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(Get(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 0u);
}

TEST_F(HostPools, ADeviceWithoutAccessCannotReachIn) {
  const CUdeviceptr address = Take(DefaultPool(1), kMiB);
  EXPECT_EQ(cu.cuMemsetD8(address, 1, 8), CUDA_ERROR_INVALID_VALUE);
  const CUmemAccessDesc desc = Access(kRead, 0);
  EXPECT_EQ(cu.cuMemPoolSetAccess(DefaultPool(1), &desc, 1),
            CUDA_ERROR_NOT_SUPPORTED);
  const CUmemAccessDesc both = Access(kReadWrite, 0);
  ASSERT_EQ(cu.cuMemPoolSetAccess(DefaultPool(1), &both, 1), CUDA_SUCCESS);
  EXPECT_EQ(Bytes(address, 8), std::vector<std::uint8_t>(8, 0));
  const CUmemAccessDesc none = Access(kNoAccess, 0);
  ASSERT_EQ(cu.cuMemPoolSetAccess(DefaultPool(1), &none, 1), CUDA_SUCCESS);
  // Its own device cannot lose it.
  const CUmemAccessDesc own = Access(kNoAccess, 1);
  EXPECT_EQ(cu.cuMemPoolSetAccess(DefaultPool(1), &own, 1),
            CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(cu.cuMemFreeAsync(address, nullptr), CUDA_SUCCESS);
}

TEST_F(HostPools, WhatIsNoPoolIsNotImported) {
  for (const auto& [name, fd] : DescriptorsThatAreNoMemory()) {
    CUmemoryPool pool = nullptr;
    EXPECT_EQ(
        cu.cuMemPoolImportFromShareableHandle(&pool, Shareable(fd), kFd, 0),
        CUDA_ERROR_INVALID_VALUE)
        << name;
    if (fd >= 0 && fd != 9999) CloseDescriptor(fd);
  }
}

// Every byte of an exported pointer is spoilt in turn.
TEST_F(HostPools, SpoiltPointersAreNotImported) {
  const CUmemoryPool pool = MakePool(kFd);
  const CUdeviceptr address = Take(pool, kMiB);
  CUmemPoolPtrExportData good{};
  ASSERT_EQ(cu.cuMemPoolExportPointer(&good, address), CUDA_SUCCESS);
  int fd = -1;
  ASSERT_EQ(ExportPoolTo(cu, &fd, pool), CUDA_SUCCESS);
  CUmemoryPool imported = nullptr;
  ASSERT_EQ(
      cu.cuMemPoolImportFromShareableHandle(&imported, Shareable(fd), kFd, 0),
      CUDA_SUCCESS);
  CloseDescriptor(fd);
  int refused = 0;
  for (std::size_t i = 0; i < sizeof(good); ++i) {
    CUmemPoolPtrExportData bad = good;
    reinterpret_cast<unsigned char*>(&bad)[i] ^= 0xff;
    CUdeviceptr got = 0;
    const CUresult result = cu.cuMemPoolImportPointer(&got, imported, &bad);
    if (result == CUDA_SUCCESS) {  // Another place or size, in bounds.
      EXPECT_EQ(FillAndWait(cu, got, 1, 1), CUDA_SUCCESS) << i;
      EXPECT_EQ(cu.cuMemFree(got), CUDA_SUCCESS) << i;
    } else {
      EXPECT_EQ(result, CUDA_ERROR_INVALID_VALUE) << i;
      ++refused;
    }
  }
  EXPECT_GE(refused, 40);  // All of five of its seven words at least.
  CUdeviceptr got = 0;
  EXPECT_EQ(cu.cuMemPoolImportPointer(&got, imported, &good), CUDA_SUCCESS);
  CUdeviceptr again = 0;
  EXPECT_EQ(cu.cuMemPoolImportPointer(&again, imported, &good), CUDA_SUCCESS);
  EXPECT_EQ(again, got);
  EXPECT_EQ(cu.cuMemFree(got), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemPoolDestroy(imported), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemFreeAsync(address, nullptr), CUDA_SUCCESS);
}

// args: socket. Makes a pool and memory of 1s in it, by cuMemAlloc too; sends
// the pool, the pointer and the handle; and waits for its end.
int Maker(const std::vector<std::string>& args) {
  const platform::DriverTable& cu = DriverWithContext();
  const int socket = std::stoi(args[0]);
  Checks checks;
  const CUmemPoolProps props = PoolProperties(kFd);
  CUmemoryPool pool = nullptr;
  CUdeviceptr pooled = 0;
  CUdeviceptr block = 0;
  int fd = -1;
  CUmemPoolPtrExportData data{};
  CUipcMemHandle handle{};
  checks.Expect("create", cu.cuMemPoolCreate(&pool, &props), CUDA_SUCCESS);
  checks.Expect("take",
                cu.cuMemAllocFromPoolAsync(&pooled, kMiB, pool, nullptr),
                CUDA_SUCCESS);
  checks.Expect("fill", FillAndWait(cu, pooled, 1, kMiB), CUDA_SUCCESS);
  checks.Expect("allocate", cu.cuMemAlloc(&block, kMiB), CUDA_SUCCESS);
  checks.Expect("fill", FillAndWait(cu, block, 1, kMiB), CUDA_SUCCESS);
  checks.Expect("export", ExportPoolTo(cu, &fd, pool), CUDA_SUCCESS);
  checks.Expect("pointer", cu.cuMemPoolExportPointer(&data, pooled),
                CUDA_SUCCESS);
  checks.Expect("handle", cu.cuIpcGetMemHandle(&handle, block), CUDA_SUCCESS);
  checks.ExpectTrue("sent", SendDescriptor(socket, fd) &&
                                SendBytes(socket, &data, sizeof(data)) &&
                                SendBytes(socket, &handle, sizeof(handle)));
  char end = 0;
  ReceiveBytes(socket, &end, 1);  // Killed meanwhile.
  return 1;
}
const bool kMaker = RegisterChild("host_pool_maker", &Maker);

TEST_F(HostPools, WhatIsMappedOutlivesItsKilledMakerAndLeavesNothing) {
  const std::size_t before = FreeMemory();
  const SocketPair sockets = MakeSocketPair();
  Child maker =
      Child::Start("host_pool_maker", {std::to_string(sockets.childs)});
  CloseDescriptor(sockets.childs);
  int fd = -1;
  CUmemPoolPtrExportData data{};
  CUipcMemHandle handle{};
  ASSERT_TRUE(ReceiveDescriptor(sockets.mine, &fd));
  ASSERT_TRUE(ReceiveBytes(sockets.mine, &data, sizeof(data)));
  ASSERT_TRUE(ReceiveBytes(sockets.mine, &handle, sizeof(handle)));
  CUmemoryPool pool = nullptr;
  ASSERT_EQ(cu.cuMemPoolImportFromShareableHandle(&pool, Shareable(fd), kFd, 0),
            CUDA_SUCCESS);
  CloseDescriptor(fd);
  CUdeviceptr pooled = 0;
  CUdeviceptr opened = 0;
  ASSERT_EQ(cu.cuMemPoolImportPointer(&pooled, pool, &data), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuIpcOpenMemHandle(&opened, handle, kLazy), CUDA_SUCCESS);
  const VmmshareHostLedger held = LedgerNow();
  EXPECT_EQ(cu.cuMemFree(opened), CUDA_ERROR_INVALID_VALUE)
      << "that is not how it is closed";
  maker.Kill();
  EXPECT_EQ(maker.Wait(), Child::kKilled);
  CloseDescriptor(sockets.mine);
  EXPECT_EQ(Bytes(pooled, kMiB), std::vector<std::uint8_t>(kMiB, 1));
  EXPECT_EQ(Bytes(opened, kMiB), std::vector<std::uint8_t>(kMiB, 1));
  EXPECT_LT(FreeMemory(), before);
  EXPECT_EQ(cu.cuMemFreeAsync(pooled, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemPoolImportPointer(&pooled, pool, &data),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuIpcCloseMemHandle(opened), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemPoolDestroy(pool), CUDA_SUCCESS);
  const VmmshareHostLedger now = LedgerNow();
  EXPECT_EQ(now.legacy_opens, held.legacy_opens - 1);
  EXPECT_EQ(now.pools, held.pools - 1);
  EXPECT_EQ(now.pool_blocks, held.pool_blocks - 1);
  EXPECT_EQ(FreeMemory(), before);
}

// args: handle, device, the result of opening it there.
int OpensOn(const std::vector<std::string>& args) {
  const platform::DriverTable& cu = DriverWithContext();
  Checks checks;
  const int device = std::stoi(args[1]);
  CUcontext context = nullptr;
  checks.Expect("retain", cu.cuDevicePrimaryCtxRetain(&context, device),
                CUDA_SUCCESS);
  checks.Expect("set", cu.cuCtxSetCurrent(context), CUDA_SUCCESS);
  const auto handle = FromText<CUipcMemHandle>(args[0]);
  CUdeviceptr address = 0;
  checks.Expect("open", cu.cuIpcOpenMemHandle(&address, handle, kLazy),
                static_cast<CUresult>(std::stoi(args[2])));
  checks.Expect("other flags", cu.cuIpcOpenMemHandle(&address, handle, 0),
                CUDA_ERROR_INVALID_VALUE);
  return checks.failures();
}
const bool kOpensOn = RegisterChild("ipc_opens_on", &OpensOn);

TEST_F(HostPools, LegacyHandlesAreOpenedByPeersOnly) {
  CUdeviceptr block = 0;
  CUipcMemHandle handle{};
  ASSERT_EQ(cu.cuMemAlloc(&block, kMiB), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuIpcGetMemHandle(&handle, block), CUDA_SUCCESS);
  const auto open = [&](const char* peers, int device, CUresult result) {
    return Child::Start("ipc_opens_on",
                        {ToText(handle), std::to_string(device),
                         std::to_string(static_cast<int>(result))},
                        {{"VMMSHARE_HOST_PEERS", peers}})
        .Wait();
  };
  EXPECT_EQ(open("none", 0, CUDA_SUCCESS), 0);
  EXPECT_EQ(open("none", 1, CUDA_ERROR_MAP_FAILED), 0);
  EXPECT_EQ(open("0-1", 1, CUDA_SUCCESS), 0);
  EXPECT_EQ(cu.cuMemFree(block), CUDA_SUCCESS);
}

// args: handle. Opens it with each of its bytes spoilt in turn.
int OpensSpoilt(const std::vector<std::string>& args) {
  const platform::DriverTable& cu = DriverWithContext();
  Checks checks;
  CUdeviceptr block = 0;
  CUipcMemHandle own{};
  checks.Expect("allocate", cu.cuMemAlloc(&block, kMiB), CUDA_SUCCESS);
  checks.Expect("export", cu.cuIpcGetMemHandle(&own, block), CUDA_SUCCESS);
  // Where a handle names its maker. A spoilt number may be this process's, for
  // the two began one after the other.
  const auto names_this_process = [&own](const CUipcMemHandle& handle) {
    return std::memcmp(handle.reserved + 8, own.reserved + 8, 8) == 0;
  };
  const auto open = [&](const CUipcMemHandle& bad) {
    CUdeviceptr address = 0;
    checks.Expect("open a spoilt handle",
                  cu.cuIpcOpenMemHandle(&address, bad, kLazy),
                  names_this_process(bad) ? CUDA_ERROR_INVALID_CONTEXT
                                          : CUDA_ERROR_INVALID_VALUE);
  };
  const auto good = FromText<CUipcMemHandle>(args[0]);
  for (std::size_t i = 0; i < 40; ++i) {  // The rest is not used.
    if (i == 32 || i == 33) continue;     // A smaller size.
    CUipcMemHandle bad = good;
    reinterpret_cast<unsigned char*>(&bad)[i] ^= 0xff;
    open(bad);
  }
  CUipcMemHandle renamed = good;
  std::memcpy(renamed.reserved + 8, own.reserved + 8, 8);
  open(renamed);
  checks.Expect("free", cu.cuMemFree(block), CUDA_SUCCESS);
  return checks.failures();
}
const bool kOpensSpoilt = RegisterChild("ipc_opens_spoilt", &OpensSpoilt);

TEST_F(HostPools, SpoiltLegacyHandlesAreNotOpened) {
  CUdeviceptr block = 0;
  CUipcMemHandle handle{};
  ASSERT_EQ(cu.cuMemAlloc(&block, kMiB), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuIpcGetMemHandle(&handle, block), CUDA_SUCCESS);
  EXPECT_EQ(Child::Start("ipc_opens_spoilt", {ToText(handle)}).Wait(), 0);
  EXPECT_EQ(cu.cuMemFree(block), CUDA_SUCCESS);
}

TEST_F(HostPools, LegacyHandlesMeanNothingToAnotherInstance) {
  CUdeviceptr block = 0;
  CUipcMemHandle handle{};
  ASSERT_EQ(cu.cuMemAlloc(&block, kMiB), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuIpcGetMemHandle(&handle, block), CUDA_SUCCESS);
  EXPECT_EQ(
      Child::Start(
          "ipc_opens_on",
          {ToText(handle), "0", std::to_string(CUDA_ERROR_INVALID_VALUE)},
          {{"VMMSHARE_HOST_INSTANCE", HostInstanceName("another-machine")}})
          .Wait(),
      0);
  EXPECT_EQ(cu.cuMemFree(block), CUDA_SUCCESS);
}

}  // namespace
}  // namespace vmm::testing
