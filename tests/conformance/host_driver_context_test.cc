// Contexts that a program makes itself: no part of vmmshare uses them, so they
// are not in its table, and programs link them. And what goes with a reset.
#include <thread>

#include "tests/conformance/host_driver_test.h"
#include "tests/support/child.h"
#include "tests/support/emulator.h"

namespace vmm::testing {
namespace {

// As cuda.h 12.5 and newer have it.
struct CreateParameters {
  void* affinity;
  int affinities;
  void* graphics;
};

class MadeContext : public Conformance {
 protected:
  CUresult Make(CUcontext* context, int device = 0, unsigned int flags = 0,
                CreateParameters* parameters = nullptr) {
    return FindExport<CUresult(CUcontext*, CreateParameters*, unsigned, int)>(
        "cuCtxCreate_v4")(context, parameters, flags, device);
  }
  CUresult Destroy(CUcontext context) {
    return FindExport<CUresult(CUcontext)>("cuCtxDestroy_v2")(context);
  }
  CUresult Enable(CUcontext peer, unsigned int flags = 0) {
    return FindExport<CUresult(CUcontext, unsigned)>("cuCtxEnablePeerAccess")(
        peer, flags);
  }
  CUresult Disable(CUcontext peer) {
    return FindExport<CUresult(CUcontext)>("cuCtxDisablePeerAccess")(peer);
  }
};

TEST_F(MadeContext, IsCurrentUntilItIsDestroyed) {
  const CUcontext before = Current();
  CUcontext made = nullptr;
  ASSERT_EQ(Make(&made, 1), CUDA_SUCCESS);
  EXPECT_NE(made, before);
  EXPECT_EQ(Current(), made);
  CUdevice device = -1;
  EXPECT_EQ(cu.cuCtxGetDevice(&device), CUDA_SUCCESS);
  EXPECT_EQ(device, 1);
  EXPECT_EQ(Destroy(made), CUDA_SUCCESS);
  EXPECT_EQ(Current(), before);
}

TEST_F(MadeContext, IsMadeByTheOlderCallsToo) {
  CUcontext made = nullptr;
  ASSERT_EQ((FindExport<CUresult(CUcontext*, unsigned, int)>("cuCtxCreate_v2")(
                &made, 0, 0)),
            CUDA_SUCCESS);
  EXPECT_EQ(Destroy(made), CUDA_SUCCESS);
  const auto v3 = FindExport<CUresult(CUcontext*, void*, int, unsigned, int)>(
      "cuCtxCreate_v3");
  ASSERT_EQ(v3(&made, nullptr, 0, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(Destroy(made), CUDA_SUCCESS);
  EXPECT_EQ(v3(&made, &made, 1, 0, 0), CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY);
}

TEST_F(MadeContext, TakesItsMemoryAndStreamsWithIt) {
  CUcontext made = nullptr;
  ASSERT_EQ(Make(&made), CUDA_SUCCESS);
  CUdeviceptr address = 0;
  CUstream stream = nullptr;
  EXPECT_EQ(cu.cuMemAlloc(&address, kMiB), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemsetD8Async(address, 1, kMiB, stream), CUDA_SUCCESS);
  const VmmshareHostLedger during = LedgerNow();
  EXPECT_EQ(Destroy(made), CUDA_SUCCESS);
  const VmmshareHostLedger after = LedgerNow();
  EXPECT_EQ(after.contexts, during.contexts - 1);
  EXPECT_EQ(after.device_blocks, during.device_blocks - 1);
  EXPECT_EQ(after.streams, during.streams - 1);
}

TEST_F(MadeContext, LeavesThePrimaryOneAlone) {
  CUcontext made = nullptr;
  ASSERT_EQ(Make(&made), CUDA_SUCCESS);
  EXPECT_EQ(Destroy(made), CUDA_SUCCESS);
  unsigned int flags = 0;
  int active = 0;
  EXPECT_EQ(cu.cuDevicePrimaryCtxGetState(0, &flags, &active), CUDA_SUCCESS);
  EXPECT_EQ(active, 1);
  EXPECT_EQ(Destroy(Current()), CUDA_ERROR_INVALID_CONTEXT);
}

TEST_F(MadeContext, RefusesWhatItCannotMake) {
  CUcontext made = nullptr;
  EXPECT_EQ(Make(nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Make(&made, 64), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(Make(&made, -1), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(Make(&made, 0, 1u << 20), CUDA_ERROR_INVALID_VALUE);
  CreateParameters parameters{&made, 1, nullptr};
  EXPECT_EQ(Make(&made, 0, 0, &parameters),
            CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY);
  parameters = {nullptr, 0, &made};
  EXPECT_EQ(Make(&made, 0, 0, &parameters), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(Destroy(nullptr), CUDA_ERROR_INVALID_VALUE);
  parameters = {nullptr, 0, nullptr};
  ASSERT_EQ(Make(&made, 0, 0, &parameters), CUDA_SUCCESS);
  EXPECT_EQ(Destroy(made), CUDA_SUCCESS);
}

TEST_F(MadeContext, AThreadHasRoomForSoManyCurrentOnes) {
  const CUcontext current = Current();
  CUresult result = CUDA_SUCCESS;
  int pushed = 0;
  for (; pushed < 100; ++pushed) {
    result = cu.cuCtxPushCurrent(current);
    if (result != CUDA_SUCCESS) break;
  }
  EXPECT_EQ(result, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(pushed, 63);
  CUcontext made = nullptr;
  EXPECT_EQ(Make(&made), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(made, nullptr);
  for (; pushed > 0; --pushed) {
    EXPECT_EQ(cu.cuCtxPopCurrent(nullptr), CUDA_SUCCESS);
  }
  EXPECT_EQ(Current(), current);
}

TEST_F(MadeContext, ThatIsDestroyedBelowAnotherStaysThereAndIsOfNoUse) {
  const CUcontext primary = Current();
  void* host = nullptr;
  ASSERT_EQ(cu.cuMemHostAlloc(&host, 1, 0), CUDA_SUCCESS);
  CUcontext made = nullptr;
  ASSERT_EQ(Make(&made, 1), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuCtxPushCurrent(primary), CUDA_SUCCESS);
  EXPECT_EQ(Destroy(made), CUDA_SUCCESS);
  EXPECT_EQ(Enable(made), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cu.cuCtxPushCurrent(made), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  EXPECT_EQ(Current(), primary);
  EXPECT_EQ(cu.cuCtxPopCurrent(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(Current(), made);
  CUdeviceptr block = 0;
  EXPECT_EQ(cu.cuMemAlloc(&block, 1), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  int device = 7;
  EXPECT_EQ(
      cu.cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                               reinterpret_cast<CUdeviceptr>(host)),
      CUDA_SUCCESS);
  EXPECT_EQ(device, 0) << "its device is no more the current one";
  EXPECT_EQ(cu.cuCtxPopCurrent(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(Current(), primary);
  EXPECT_EQ(cu.cuMemFreeHost(host), CUDA_SUCCESS);
}

TEST_F(MadeContext, IsNotAskedForByAThreadThatOnlyLooks) {
  const CUdeviceptr address = Memory();
  void* host = nullptr;
  ASSERT_EQ(cu.cuMemHostAlloc(&host, 1, 0), CUDA_SUCCESS);
  CUcontext made = nullptr;
  ASSERT_EQ(Make(&made), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuCtxPopCurrent(nullptr), CUDA_SUCCESS);
  std::thread([&] {
    int device = 7;
    int access = 7;
    CUdeviceptr block = 0;
    std::size_t size = 0;
    ExpectAnswers({
        {"none", cu.cuMemAlloc(&block, 1), CUDA_ERROR_INVALID_CONTEXT},
        {"nor a place of it",
         cu.cuPointerGetAttribute(&block, CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
                                  address),
         CUDA_ERROR_INVALID_CONTEXT},
        {"it need not be current", Destroy(made), CUDA_SUCCESS},
        {"nor this", cu.cuMemGetAddressRange(&block, &size, address),
         CUDA_ERROR_INVALID_CONTEXT},
        {"the host's",
         cu.cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                  reinterpret_cast<CUdeviceptr>(host)),
         CUDA_SUCCESS},
        {"its own device's",
         cu.cuPointerGetAttribute(&access, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS,
                                  address),
         CUDA_SUCCESS},
    });
    EXPECT_EQ(device, 0);
    EXPECT_EQ(access, static_cast<int>(kReadWrite));
    EXPECT_EQ(cu.cuMemFreeHost(host), CUDA_SUCCESS) << "this needs none";
  }).join();
}

// With VMMSHARE_HOST_PEERS=none.
int HasNoPeers(const std::vector<std::string>&) {
  const platform::DriverTable& cu = DriverWithContext();
  CUcontext there = nullptr;
  CUmemoryPool pool = nullptr;
  const CUmemAccessDesc desc = Access(kReadWrite, 1);
  Checks checks;
  checks.Expect("retain", cu.cuDevicePrimaryCtxRetain(&there, 1), CUDA_SUCCESS);
  checks.Expect("enable",
                FindExport<CUresult(CUcontext, unsigned)>(
                    "cuCtxEnablePeerAccess")(there, 0),
                CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
  checks.Expect("pool", cu.cuDeviceGetDefaultMemPool(&pool, 0), CUDA_SUCCESS);
  checks.Expect("access", cu.cuMemPoolSetAccess(pool, &desc, 1),
                CUDA_ERROR_INVALID_DEVICE);
  return checks.failures();
}
const bool kHasNoPeers = RegisterChild("has-no-peers", &HasNoPeers);

TEST_F(MadeContext, ReachesNoneButPeers) {
  EXPECT_EQ(Child::Start("has-no-peers", {}, {{"VMMSHARE_HOST_PEERS", "none"}})
                .Wait(),
            0);
}

TEST_F(MadeContext, EnablesAccessToAPeerOnce) {
  CUcontext here = nullptr;
  CUcontext there = nullptr;
  ASSERT_EQ(Make(&here, 0), CUDA_SUCCESS);
  ASSERT_EQ(Make(&there, 1), CUDA_SUCCESS);
  EXPECT_EQ(Enable(here), CUDA_SUCCESS);
  EXPECT_EQ(Enable(here), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
  EXPECT_EQ(Enable(here, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Enable(there), CUDA_ERROR_INVALID_CONTEXT) << "its own";
  EXPECT_EQ(Enable(nullptr), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(Disable(here), CUDA_SUCCESS);
  EXPECT_EQ(Disable(here), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
  CUcontext same_device = nullptr;
  ASSERT_EQ(Make(&same_device, 1), CUDA_SUCCESS);
  EXPECT_EQ(Enable(there), CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
  for (const CUcontext made : {same_device, there, here}) {
    EXPECT_EQ(Destroy(made), CUDA_SUCCESS);
  }
}

TEST_F(MadeContext, HasNoMoreAccessToAPrimaryOneThatWasEnded) {
  CUcontext here = nullptr;
  CUcontext there = nullptr;
  ASSERT_EQ(Make(&here, 0), CUDA_SUCCESS);
  for (int times = 0; times < 2; ++times) {
    ASSERT_EQ(cu.cuDevicePrimaryCtxRetain(&there, 1), CUDA_SUCCESS);
    EXPECT_EQ(Enable(there), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuDevicePrimaryCtxRelease(1), CUDA_SUCCESS);
  }
  EXPECT_EQ(Destroy(here), CUDA_SUCCESS);
}

// A reset, as a last release, takes what is of the context and nothing else.
int TakesWhatIsOfIt(const std::vector<std::string>&) {
  const platform::DriverTable& cu = DriverWithContext();
  Checks checks;
  CUdeviceptr block = 0;
  CUdeviceptr pooled = 0;
  void* host = nullptr;
  CUstream stream = nullptr;
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr address = 0;
  checks.Expect("nothing to do", cu.cuDevicePrimaryCtxReset(1), CUDA_SUCCESS);
  checks.Expect("block", cu.cuMemAlloc(&block, kGranule), CUDA_SUCCESS);
  checks.Expect("host", cu.cuMemHostAlloc(&host, 4096, 0), CUDA_SUCCESS);
  checks.Expect("stream", cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING),
                CUDA_SUCCESS);
  checks.Expect("pooled", cu.cuMemAllocAsync(&pooled, kMiB, nullptr),
                CUDA_SUCCESS);
  MapNew(cu, &checks, Properties(), &handle, &address);
  const CUmemAccessDesc access = Access(kReadWrite);
  checks.Expect("access", cu.cuMemSetAccess(address, kGranule, &access, 1),
                CUDA_SUCCESS);
  // Somebody waits for a value that nobody will write.
  checks.Expect(
      "wait on stream",
      cu.cuStreamWaitValue64(stream, address, 1, CU_STREAM_WAIT_VALUE_GEQ),
      CUDA_SUCCESS);
  CUcontext current = nullptr;
  checks.Expect("current", cu.cuCtxGetCurrent(&current), CUDA_SUCCESS);
  CUresult waited = CUDA_SUCCESS;
  std::thread waiter([&] {
    cu.cuCtxSetCurrent(current);
    waited = cu.cuCtxSynchronize();
  });
  while (HostDriver().calls("cuCtxSynchronize") == 0) std::this_thread::yield();
  checks.Expect("reset", cu.cuDevicePrimaryCtxReset(0), CUDA_SUCCESS);
  waiter.join();
  checks.Expect("wait", waited, CUDA_ERROR_CONTEXT_IS_DESTROYED);
  const VmmshareHostLedger left = LedgerNow();
  checks.ExpectTrue("no blocks", left.device_blocks + left.host_blocks == 0);
  checks.ExpectTrue("no streams", left.streams == 0);
  checks.ExpectTrue("a release is owed", left.contexts == 1);
  checks.ExpectTrue("the pool's memory is there", left.pool_blocks == 1);
  checks.ExpectTrue("and what was made without a context",
                    left.handles == 1 && left.mappings == 1);
  return checks.failures();
}
const bool kTakesWhatIsOfIt =
    RegisterChild("reset_takes_what_is_of_it", &TakesWhatIsOfIt);

TEST(ResetContext, TakesItsMemoryAndStreamsWithItAndEndsWaits) {
  EXPECT_EQ(Child::Start("reset_takes_what_is_of_it", {}).Wait(), 0);
}

using MadeContextDeathTest = MadeContext;

TEST_F(MadeContextDeathTest, DestroyingTwiceStopsTheProgram) {
  if (IsEmulated()) GTEST_SKIP() << kStartsNothing;
  CUcontext made = nullptr;
  ASSERT_EQ(Make(&made), CUDA_SUCCESS);
  ASSERT_EQ(Destroy(made), CUDA_SUCCESS);
  EXPECT_DEATH(Destroy(made),
               "cuCtxDestroy: context 0x\\w+ was already released");
  EXPECT_EQ(cu.cuCtxSetCurrent(made), CUDA_ERROR_CONTEXT_IS_DESTROYED);
}

}  // namespace
}  // namespace vmm::testing
