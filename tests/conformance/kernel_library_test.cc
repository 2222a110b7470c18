// Kernels of libraries, which are of no context (CUDA 12.0). The host-memory driver
// runs by its name what this text says.
#include "tests/conformance/conformance.h"

namespace vmm::testing {
namespace {

constexpr char kText[] = R"(
.version 6.3
.target sm_70
.address_size 64
.visible .entry vmmshare_fence_add(.param .u64 at, .param .u64 value)
{
  .reg .b64 %at, %value;
  ld.param.u64 %at, [at];
  ld.param.u64 %value, [value];
  red.release.sys.global.add.u64 [%at], %value;
  ret;
}
)";

class KernelLibrary : public Conformance {
 protected:
  // There is one in a process; nobody unloads it.
  CUlibrary Load() {
    CUlibrary library = nullptr;
    EXPECT_EQ(cu.cuLibraryLoadData(&library, kText, nullptr, nullptr, 0,
                                   nullptr, nullptr, 0),
              CUDA_SUCCESS);
    return library;
  }
  CUkernel Kernel() {
    CUkernel kernel = nullptr;
    EXPECT_EQ(cu.cuLibraryGetKernel(&kernel, Load(), "vmmshare_fence_add"),
              CUDA_SUCCESS);
    return kernel;
  }
  CUresult Launch(CUkernel kernel, CUdeviceptr at, std::uint64_t value,
                  CUstream stream) {
    void* arguments[] = {&at, &value};
    return cu.cuLaunchKernel(reinterpret_cast<CUfunction>(kernel), 1, 1, 1, 1,
                             1, 1, 0, stream, arguments, nullptr);
  }
};

TEST_F(KernelLibrary, IsReadWhenAKernelIsAskedFor) {
  CUlibrary library = nullptr;
  EXPECT_EQ(cu.cuLibraryLoadData(nullptr, kText, nullptr, nullptr, 0, nullptr,
                                 nullptr, 0),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuLibraryLoadData(&library, nullptr, nullptr, nullptr, 0,
                                 nullptr, nullptr, 0),
            CUDA_ERROR_INVALID_VALUE);
  // It is read when a kernel is asked for.
  ASSERT_EQ(cu.cuLibraryLoadData(&library, "no kernel", nullptr, nullptr, 0,
                                 nullptr, nullptr, 0),
            CUDA_SUCCESS);
  CUkernel kernel = nullptr;
  EXPECT_EQ(cu.cuLibraryGetKernel(&kernel, library, "vmmshare_fence_add"),
            CUDA_ERROR_INVALID_IMAGE);
}

TEST_F(KernelLibrary, HasKernelsByName) {
  const CUlibrary library = Load();
  CUkernel first = nullptr;
  CUkernel second = nullptr;
  EXPECT_EQ(cu.cuLibraryGetKernel(&first, library, "vmmshare_fence_add"),
            CUDA_SUCCESS);
  EXPECT_EQ(cu.cuLibraryGetKernel(&second, library, "vmmshare_fence_add"),
            CUDA_SUCCESS);
  EXPECT_EQ(first, second);
  EXPECT_EQ(cu.cuLibraryGetKernel(&second, library, "nothing"),
            CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(cu.cuLibraryGetKernel(nullptr, library, "vmmshare_fence_add"),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuLibraryGetKernel(&second, library, nullptr),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(KernelLibrary, ItsKernelsRunInTheirStreamsTurn) {
  const CUkernel kernel = Kernel();
  const CUdeviceptr at = Memory();
  const CUdeviceptr flag = Memory();
  const CUstream stream = MakeStream();
  const CUstream other = MakeStream();
  // The first launch loads it, for which the driver may have to wait.
  ASSERT_EQ(Launch(kernel, at, 1, other), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuStreamSynchronize(other), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuStreamWaitValue64(stream, flag, 1, CU_STREAM_WAIT_VALUE_EQ),
            CUDA_SUCCESS);
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(Launch(kernel, at, 5, stream), CUDA_SUCCESS);
  }
  EXPECT_EQ(cu.cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
  ASSERT_EQ(cu.cuStreamWriteValue64(other, flag, 1, 0), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_EQ(Word(at), 16u);
}

TEST_F(KernelLibrary, AKernelRunsInTheContextOfItsStream) {
  const CUkernel kernel = Kernel();
  const CUdeviceptr at = Memory();
  ASSERT_EQ(Launch(kernel, at, 2, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(Word(at), 2u);
  if (DeviceCount() < 2) return;
  CUdevice second = 0;
  CUcontext context = nullptr;
  ASSERT_EQ(cu.cuDeviceGet(&second, 1), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuDevicePrimaryCtxRetain(&context, second), CUDA_SUCCESS);
  Later([this, second] { cu.cuDevicePrimaryCtxRelease(second); });
  SetAccess(at, kGranule, kReadWrite, 1);
  ASSERT_EQ(cu.cuCtxPushCurrent(context), CUDA_SUCCESS);
  EXPECT_EQ(Launch(kernel, at, 3, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuCtxPopCurrent(&context), CUDA_SUCCESS);
  EXPECT_EQ(Word(at), 5u);
}

}  // namespace
}  // namespace vmm::testing
