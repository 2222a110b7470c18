// What CUDA leaves undefined, and this driver does not.
#include "tests/conformance/host_driver_test.h"
#include "tests/support/emulator.h"

namespace vmm::testing {
namespace {

class Misuse : public Conformance {
 protected:
  void SetUp() override {
    if (IsEmulated()) GTEST_SKIP() << kStartsNothing;
  }
  CUmemGenericAllocationHandle Released() {
    const CUmemAllocationProp prop = Properties();
    CUmemGenericAllocationHandle handle = 0;
    EXPECT_EQ(cu.cuMemCreate(&handle, kGranule, &prop, 0), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuMemRelease(handle), CUDA_SUCCESS);
    return handle;
  }
};
using MisuseDeathTest = Misuse;

TEST_F(MisuseDeathTest, ReleasingTwiceStopsTheProgram) {
  const CUmemGenericAllocationHandle handle = Released();
  EXPECT_DEATH(cu.cuMemRelease(handle),
               "vmmshare host-memory driver: cuMemRelease: handle 0x\\w+ "
               "was already released");
}

TEST_F(MisuseDeathTest, ReleasingTwiceStopsTheProgramEvenWhileItIsMapped) {
  const CUmemAllocationProp prop = Properties();
  CUmemGenericAllocationHandle handle = 0;
  ASSERT_EQ(cu.cuMemCreate(&handle, kGranule, &prop, 0), CUDA_SUCCESS);
  const CUdeviceptr address = Reserve();
  Map(address, handle);
  ASSERT_EQ(cu.cuMemRelease(handle), CUDA_SUCCESS);
  EXPECT_DEATH(cu.cuMemRelease(handle), "was already released");
}

TEST_F(MisuseDeathTest, UsingAReleasedHandleStopsTheProgram) {
  const CUmemGenericAllocationHandle handle = Released();
  const CUdeviceptr address = Reserve();
  EXPECT_DEATH(cu.cuMemMap(address, kGranule, 0, handle, 0),
               "cuMemMap: handle 0x\\w+ was already released");
  int fd = -1;
  EXPECT_DEATH(ExportTo(cu, &fd, handle),
               "cuMemExportToShareableHandle: handle");
  CUmemAllocationProp prop;
  EXPECT_DEATH(cu.cuMemGetAllocationPropertiesFromHandle(&prop, handle),
               "cuMemGetAllocationPropertiesFromHandle: handle");
}

TEST_F(MisuseDeathTest, AHandleNeverIssuedStopsTheProgram) {
  EXPECT_DEATH(cu.cuMemRelease(0x1234),
               "handle 0x1234 was never issued by this driver");
  const CUmemGenericAllocationHandle last = Released();
  EXPECT_DEATH(cu.cuMemRelease(last + 16), "was never issued by this driver");
  EXPECT_DEATH(cu.cuMemRelease(last - 8), "was never issued by this driver");
}

TEST_F(MisuseDeathTest, AHandleValueIsNeverUsedAgain) {
  EXPECT_NE(Released(), Create());
}

TEST_F(MisuseDeathTest, UnmappingWhereNothingIsMappedStopsTheProgram) {
  const CUdeviceptr address = Reserve();
  EXPECT_DEATH(cu.cuMemUnmap(address, kGranule),
               "cuMemUnmap: nothing is mapped at 0x\\w+");
}

TEST_F(MisuseDeathTest, DestroyingAStreamTwiceStopsTheProgram) {
  CUstream stream = nullptr;
  ASSERT_EQ(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuStreamDestroy(stream), CUDA_SUCCESS);
  EXPECT_DEATH(cu.cuStreamDestroy(stream),
               "cuStreamDestroy: stream 0x\\w+ was already released");
  EXPECT_DEATH(cu.cuStreamSynchronize(stream), "cuStreamSynchronize: stream");
}

TEST_F(MisuseDeathTest, DestroyingAnEventTwiceStopsTheProgram) {
  CUevent event = nullptr;
  ASSERT_EQ(cu.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuEventDestroy(event), CUDA_SUCCESS);
  EXPECT_DEATH(cu.cuEventDestroy(event),
               "cuEventDestroy: event 0x\\w+ was already released");
  CUipcEventHandle handle{};
  EXPECT_DEATH(cu.cuIpcGetEventHandle(&handle, event),
               "cuIpcGetEventHandle: event 0x\\w+ was already released");
}

TEST_F(MisuseDeathTest, AContextThatIsNoneStopsTheProgram) {
  EXPECT_DEATH(cu.cuCtxSetCurrent(reinterpret_cast<CUcontext>(0x1234)),
               "cuCtxSetCurrent: context 0x1234 was never issued");
}

}  // namespace
}  // namespace vmm::testing
