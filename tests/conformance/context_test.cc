// Contexts: in child processes, because destroying the context that the other
// tests use would disturb them.
#include "tests/conformance/conformance.h"
#include "tests/support/child.h"

namespace vmm::testing {
namespace {

int WithoutContext(const std::vector<std::string>&) {
  const platform::DriverTable cu = UninitialisedDriver();
  Checks checks;
  checks.Expect("cuInit", cu.cuInit(0), CUDA_SUCCESS);
  // Virtual memory management needs no context...
  const CUmemAllocationProp prop = Properties();
  const CUmemAccessDesc access = Access(kReadWrite);
  std::size_t size = 0;
  CUmemGenericAllocationHandle handle = 0;
  CUmemGenericAllocationHandle again = 0;
  CUdeviceptr address = 0;
  unsigned long long flags = 0;
  int fd = -1;
  checks.Expect("granularity",
                cu.cuMemGetAllocationGranularity(
                    &size, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
                CUDA_SUCCESS);
  MapNew(cu, &checks, prop, &handle, &address);
  checks.Expect("set access", cu.cuMemSetAccess(address, kGranule, &access, 1),
                CUDA_SUCCESS);
  checks.Expect("get access",
                cu.cuMemGetAccess(&flags, &access.location, address),
                CUDA_SUCCESS);
  checks.ExpectTrue("access is read and write", flags == 3);
  checks.Expect("export", ExportTo(cu, &fd, handle), CUDA_SUCCESS);
  checks.Expect(
      "import",
      cu.cuMemImportFromShareableHandle(
          &again, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)), kFd),
      CUDA_SUCCESS);
  unsigned type = 0;
  checks.Expect("pointer attribute",
                cu.cuPointerGetAttribute(
                    &type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address),
                CUDA_SUCCESS);
  checks.ExpectTrue("device memory", type == CU_MEMORYTYPE_DEVICE);
  CUmemGenericAllocationHandle retained = 0;
  checks.Expect("retain",
                cu.cuMemRetainAllocationHandle(
                    &retained, reinterpret_cast<void*>(address)),
                CUDA_SUCCESS);
  checks.Expect("release", cu.cuMemRelease(retained), CUDA_SUCCESS);
  // ... and makes none.
  unsigned context_flags = 1;
  int active = 1;
  checks.Expect("context state",
                cu.cuDevicePrimaryCtxGetState(0, &context_flags, &active),
                CUDA_SUCCESS);
  checks.ExpectTrue("no context", active == 0);
  // Everything else needs one.
  constexpr CUresult kNone = CUDA_ERROR_INVALID_CONTEXT;
  char byte = 0;
  CUdeviceptr block = 0;
  void* host = nullptr;
  CUstream stream = nullptr;
  CUevent event = nullptr;
  checks.Expect("address range",
                cu.cuMemGetAddressRange(&block, &size, address), kNone);
  checks.Expect("cuMemAlloc", cu.cuMemAlloc(&block, kGranule), kNone);
  checks.Expect("cuMemHostAlloc", cu.cuMemHostAlloc(&host, 4096, 0), kNone);
  checks.Expect("cuMemcpyHtoD", cu.cuMemcpyHtoD(address, &byte, 1), kNone);
  checks.Expect("cuMemsetD8", cu.cuMemsetD8(address, 1, 8), kNone);
  checks.Expect("cuMemGetInfo", cu.cuMemGetInfo(&size, &size), kNone);
  checks.Expect("cuStreamCreate", cu.cuStreamCreate(&stream, 1), kNone);
  checks.Expect("cuEventCreate", cu.cuEventCreate(&event, 0), kNone);
  checks.Expect("cuStreamSynchronize", cu.cuStreamSynchronize(nullptr), kNone);
  checks.Expect("cuCtxSynchronize", cu.cuCtxSynchronize(), kNone);
  CUdevice device = 0;
  checks.Expect("cuCtxGetDevice", cu.cuCtxGetDevice(&device), kNone);
  CUcontext context = nullptr;
  checks.Expect("cuCtxPopCurrent", cu.cuCtxPopCurrent(&context), kNone);
  checks.Expect("cuCtxGetCurrent", cu.cuCtxGetCurrent(&context), CUDA_SUCCESS);
  checks.ExpectTrue("no current context", context == nullptr);
  checks.Expect("cuCtxSetCurrent(null)", cu.cuCtxSetCurrent(nullptr),
                CUDA_SUCCESS);
  checks.Expect("primary release", cu.cuDevicePrimaryCtxRelease(0), kNone);
  checks.Expect("unmap", cu.cuMemUnmap(address, kGranule), CUDA_SUCCESS);
  checks.Expect("free", cu.cuMemAddressFree(address, kGranule), CUDA_SUCCESS);
  checks.Expect("release", cu.cuMemRelease(handle), CUDA_SUCCESS);
  checks.Expect("release import", cu.cuMemRelease(again), CUDA_SUCCESS);
  return checks.failures();
}
const bool kWithoutContext = RegisterChild("without_context", &WithoutContext);

TEST(Contexts, AreNotNeededForVirtualMemoryManagement) {
  EXPECT_EQ(Child::Start("without_context", {}).Wait(), 0);
}

int Stack(const std::vector<std::string>&) {
  const platform::DriverTable cu = UninitialisedDriver();
  Checks checks;
  CUcontext context = nullptr;
  CUcontext other = nullptr;
  CUdevice device = -1;
  checks.Expect("cuInit", cu.cuInit(0), CUDA_SUCCESS);
  checks.Expect("retain", cu.cuDevicePrimaryCtxRetain(&context, 0),
                CUDA_SUCCESS);
  checks.Expect("set", cu.cuCtxSetCurrent(context), CUDA_SUCCESS);
  checks.Expect("retain again", cu.cuDevicePrimaryCtxRetain(&other, 0),
                CUDA_SUCCESS);
  checks.ExpectTrue("it is the same context", other == context);
  checks.Expect("retain device 99", cu.cuDevicePrimaryCtxRetain(&other, 99),
                CUDA_ERROR_INVALID_DEVICE);
  checks.Expect("release one", cu.cuDevicePrimaryCtxRelease(0), CUDA_SUCCESS);
  checks.Expect("device", cu.cuCtxGetDevice(&device), CUDA_SUCCESS);
  checks.ExpectTrue("device 0", device == 0);
  checks.Expect("push", cu.cuCtxPushCurrent(context), CUDA_SUCCESS);
  checks.Expect("pop", cu.cuCtxPopCurrent(&other), CUDA_SUCCESS);
  checks.ExpectTrue("what was pushed", other == context);
  checks.Expect("pop again", cu.cuCtxPopCurrent(&other), CUDA_SUCCESS);
  checks.Expect("pop from nothing", cu.cuCtxPopCurrent(&other),
                CUDA_ERROR_INVALID_CONTEXT);
  checks.Expect("push null", cu.cuCtxPushCurrent(nullptr),
                CUDA_ERROR_INVALID_VALUE);
  return checks.failures();
}
const bool kStack = RegisterChild("context_stack", &Stack);

TEST(Contexts, AreCountedAndStacked) {
  EXPECT_EQ(Child::Start("context_stack", {}).Wait(), 0);
}

int Destroyed(const std::vector<std::string>&) {
  const platform::DriverTable cu = UninitialisedDriver();
  Checks checks;
  CUcontext context = nullptr;
  checks.Expect("cuInit", cu.cuInit(0), CUDA_SUCCESS);
  checks.Expect("retain", cu.cuDevicePrimaryCtxRetain(&context, 0),
                CUDA_SUCCESS);
  checks.Expect("set", cu.cuCtxSetCurrent(context), CUDA_SUCCESS);
  checks.Expect("release", cu.cuDevicePrimaryCtxRelease(0), CUDA_SUCCESS);
  checks.Expect("release too often", cu.cuDevicePrimaryCtxRelease(0),
                CUDA_ERROR_INVALID_CONTEXT);
  unsigned flags = 0;
  int active = 1;
  checks.Expect("state", cu.cuDevicePrimaryCtxGetState(0, &flags, &active),
                CUDA_SUCCESS);
  checks.ExpectTrue("inactive", active == 0);
  constexpr CUresult kGone = CUDA_ERROR_CONTEXT_IS_DESTROYED;
  CUdeviceptr block = 0;
  char byte = 0;
  checks.Expect("cuCtxSynchronize", cu.cuCtxSynchronize(), kGone);
  checks.Expect("cuMemAlloc", cu.cuMemAlloc(&block, kGranule), kGone);
  checks.Expect("cuStreamSynchronize", cu.cuStreamSynchronize(nullptr), kGone);
  checks.Expect("cuMemcpyHtoD", cu.cuMemcpyHtoD(0x1000, &byte, 1), kGone);
  // By which vmm/memory/dma_buf.cc tells one from a living context.
  std::size_t free = 0, total = 0;
  checks.Expect("cuMemGetInfo", cu.cuMemGetInfo(&free, &total), kGone);
  CUdevice device = -1;
  checks.Expect("cuCtxGetDevice", cu.cuCtxGetDevice(&device), CUDA_SUCCESS);
  CUcontext current = nullptr;
  checks.Expect("cuCtxGetCurrent", cu.cuCtxGetCurrent(&current), CUDA_SUCCESS);
  checks.ExpectTrue("still current", current == context);
  CUcontext anew = nullptr;
  checks.Expect("retain anew", cu.cuDevicePrimaryCtxRetain(&anew, 0),
                CUDA_SUCCESS);
  checks.ExpectTrue("the same handle", anew == context);
  checks.Expect("usable again", cu.cuCtxSynchronize(), CUDA_SUCCESS);
  checks.Expect("release", cu.cuDevicePrimaryCtxRelease(0), CUDA_SUCCESS);
  return checks.failures();
}
const bool kDestroyed = RegisterChild("context_destroyed", &Destroyed);

TEST(Contexts, SayThatTheyAreDestroyed) {
  EXPECT_EQ(Child::Start("context_destroyed", {}).Wait(), 0);
}

// As documented, and measured on two H200 (driver 580.159.04).
int Reset(const std::vector<std::string>&) {
  const platform::DriverTable cu = UninitialisedDriver();
  Checks checks;
  CUcontext context = nullptr;
  const auto is_active = [&] {
    unsigned flags = 0;
    int active = -1;
    checks.Expect("state", cu.cuDevicePrimaryCtxGetState(0, &flags, &active),
                  CUDA_SUCCESS);
    return active != 0;
  };
  checks.Expect("cuInit", cu.cuInit(0), CUDA_SUCCESS);
  checks.Expect("reset device 99", cu.cuDevicePrimaryCtxReset(99),
                CUDA_ERROR_INVALID_DEVICE);
  checks.Expect("retain", cu.cuDevicePrimaryCtxRetain(&context, 0),
                CUDA_SUCCESS);
  checks.Expect("set", cu.cuCtxSetCurrent(context), CUDA_SUCCESS);
  checks.ExpectTrue("active", is_active());
  checks.Expect("reset", cu.cuDevicePrimaryCtxReset(0), CUDA_SUCCESS);
  checks.ExpectTrue("inactive", !is_active());
  checks.Expect("synchronize", cu.cuCtxSynchronize(),
                CUDA_ERROR_CONTEXT_IS_DESTROYED);
  // "Resetting the primary context does not release it".
  checks.Expect("retain anew", cu.cuDevicePrimaryCtxRetain(&context, 0),
                CUDA_SUCCESS);
  checks.ExpectTrue("active again", is_active());
  checks.Expect("set again", cu.cuCtxSetCurrent(context), CUDA_SUCCESS);
  checks.Expect("usable again", cu.cuCtxSynchronize(), CUDA_SUCCESS);
  checks.Expect("release one", cu.cuDevicePrimaryCtxRelease(0), CUDA_SUCCESS);
  checks.ExpectTrue("still active", is_active());
  // "It is safe ... to call cuDevicePrimaryCtxRelease() even after".
  checks.Expect("reset again", cu.cuDevicePrimaryCtxReset(0), CUDA_SUCCESS);
  checks.Expect("release the other", cu.cuDevicePrimaryCtxRelease(0),
                CUDA_SUCCESS);
  checks.Expect("release too often", cu.cuDevicePrimaryCtxRelease(0),
                CUDA_ERROR_INVALID_CONTEXT);
  return checks.failures();
}
const bool kReset = RegisterChild("context_reset", &Reset);

TEST(Contexts, ThatAreResetAreStillToBeReleased) {
  EXPECT_EQ(Child::Start("context_reset", {}).Wait(), 0);
}

}  // namespace
}  // namespace vmm::testing
