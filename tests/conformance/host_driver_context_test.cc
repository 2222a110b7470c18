// Contexts that a program makes itself: no part of vmmshare uses them, so they
// are not in its table, and programs link them.
#include "tests/conformance/host_driver_test.h"
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
  template <typename Function>
  static Function* Find(const char* name) {
    return reinterpret_cast<Function*>(HostDriverExport(name));
  }
  CUresult Make(CUcontext* context, int device = 0, unsigned int flags = 0,
                CreateParameters* parameters = nullptr) {
    return Find<CUresult(CUcontext*, CreateParameters*, unsigned, int)>(
        "cuCtxCreate_v4")(context, parameters, flags, device);
  }
  CUresult Destroy(CUcontext context) {
    return Find<CUresult(CUcontext)>("cuCtxDestroy_v2")(context);
  }
  CUresult Enable(CUcontext peer, unsigned int flags = 0) {
    return Find<CUresult(CUcontext, unsigned)>("cuCtxEnablePeerAccess")(peer,
                                                                        flags);
  }
  CUresult Disable(CUcontext peer) {
    return Find<CUresult(CUcontext)>("cuCtxDisablePeerAccess")(peer);
  }
  CUcontext Current() {
    CUcontext context = nullptr;
    EXPECT_EQ(cu.cuCtxGetCurrent(&context), CUDA_SUCCESS);
    return context;
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
  ASSERT_EQ((Find<CUresult(CUcontext*, unsigned, int)>("cuCtxCreate_v2")(&made,
                                                                         0, 0)),
            CUDA_SUCCESS);
  EXPECT_EQ(Destroy(made), CUDA_SUCCESS);
  const auto v3 =
      Find<CUresult(CUcontext*, void*, int, unsigned, int)>("cuCtxCreate_v3");
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
  EXPECT_EQ(Make(&made, 0, 1u << 20), CUDA_ERROR_INVALID_VALUE);
  CreateParameters parameters{&made, 1, nullptr};
  EXPECT_EQ(Make(&made, 0, 0, &parameters),
            CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY);
  parameters = {nullptr, 0, &made};
  EXPECT_EQ(Make(&made, 0, 0, &parameters), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(Destroy(nullptr), CUDA_ERROR_INVALID_VALUE);
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
