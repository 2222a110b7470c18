// Work of the host-memory driver that goes where it may not: the fault, and what is
// left of the context afterwards.
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "tests/conformance/host_driver_test.h"
#include "tests/conformance/pool_test_base.h"
#include "tests/support/child.h"

namespace vmm::testing {
namespace {

constexpr CUresult kFault = CUDA_ERROR_ILLEGAL_ADDRESS;
constexpr CUdeviceptr kNowhere = CUdeviceptr{1} << 62;

void AsksForNoBytes(const VmmshareHostLaunch* launch, void* const*) {
  launch->memory(launch, kNowhere, nullptr, 0);
}

void ReadsOneByte(const VmmshareHostLaunch* launch, void* const* arguments) {
  std::size_t size = 1;
  launch->memory(launch, *static_cast<CUdeviceptr*>(arguments[0]), &size, 0);
}

// The driver with a context whose next work is the first after no fault.
class Faulty {
 public:
  Faulty() : cu(DriverWithContext()) {
    constexpr std::size_t kSizes[] = {sizeof(CUdeviceptr)};
    HostDriver().add_kernel("asks", &AsksForNoBytes, nullptr, 0);
    HostDriver().add_kernel("reads", &ReadsOneByte, kSizes, 1);
    checks.Expect("block", cu.cuMemAlloc(&block, 64), CUDA_SUCCESS);
  }
  void Launch(const char* kernel, std::vector<void*> arguments) {
    CUmodule module = nullptr;
    CUfunction function = nullptr;
    checks.Expect(kernel, cu.cuModuleLoadData(&module, kModuleText),
                  CUDA_SUCCESS);
    checks.Expect(kernel, cu.cuModuleGetFunction(&function, module, kernel),
                  CUDA_SUCCESS);
    checks.Expect(kernel,
                  cu.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr,
                                    arguments.data(), nullptr),
                  CUDA_SUCCESS);
  }
  // Expects the fault, and makes the context anew.
  void Recover(const char* what) {
    checks.Expect(what, cu.cuCtxSynchronize(), kFault);
    checks.Expect(what, cu.cuDevicePrimaryCtxRelease(0), CUDA_SUCCESS);
    CUcontext context = nullptr;
    checks.Expect(what, cu.cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    checks.Expect(what, cu.cuMemAlloc(&block, 64), CUDA_SUCCESS);
  }

  const platform::DriverTable& cu;
  Checks checks;
  CUdeviceptr block = 0;
};

int AnswersAfterAFault(const std::vector<std::string>&) {
  Faulty faulty;
  const platform::DriverTable& cu = faulty.cu;
  CUstream stream = nullptr;
  CUevent event = nullptr;
  Checks& checks = faulty.checks;
  checks.Expect("stream", cu.cuStreamCreate(&stream, 0), CUDA_SUCCESS);
  checks.Expect("event", cu.cuEventCreate(&event, 2), CUDA_SUCCESS);
  checks.Expect("record", cu.cuEventRecord(event, stream), CUDA_SUCCESS);
  faulty.Launch("asks", {});
  checks.Expect("the fault", cu.cuStreamSynchronize(nullptr), kFault);
  const CUdeviceptr block = faulty.block;
  std::uint64_t word = 7;
  void* host = nullptr;
  CUdeviceptr made = 0;
  CUstream another = nullptr;
  CUevent another_event = nullptr;
  CUipcMemHandle handle{};
  CUcontext context = nullptr;
  std::size_t bytes = 0;
  int priority = 7;
  unsigned int flags = 7;
  const auto priority_of =
      FindExport<decltype(::cuStreamGetPriority)>("cuStreamGetPriority");
  const auto flags_of =
      FindExport<decltype(::cuStreamGetFlags)>("cuStreamGetFlags");
  const std::vector<std::pair<const char*, CUresult>> answers = {
      {"cuEventQuery", cu.cuEventQuery(event)},
      {"cuEventSynchronize", cu.cuEventSynchronize(event)},
      {"cuEventRecord", cu.cuEventRecord(event, stream)},
      {"cuEventCreate", cu.cuEventCreate(&another_event, 2)},
      {"cuStreamWaitEvent", cu.cuStreamWaitEvent(stream, event, 0)},
      {"cuStreamCreate", cu.cuStreamCreate(&another, 0)},
      {"cuStreamQuery", cu.cuStreamQuery(stream)},
      {"cuStreamSynchronize", cu.cuStreamSynchronize(stream)},
      {"cuStreamGetCtx", cu.cuStreamGetCtx(stream, &context)},
      {"cuStreamGetPriority", priority_of(stream, &priority)},
      {"cuStreamGetFlags", flags_of(stream, &flags)},
      {"cuStreamWriteValue64", cu.cuStreamWriteValue64(stream, block, 1, 0)},
      {"cuStreamWaitValue64", cu.cuStreamWaitValue64(stream, block, 0, 0)},
      {"cuMemAlloc", cu.cuMemAlloc(&made, 1)},
      {"cuMemFree", cu.cuMemFree(block)},
      {"cuMemHostAlloc", cu.cuMemHostAlloc(&host, 1, 0)},
      {"cuMemGetInfo", cu.cuMemGetInfo(&bytes, &bytes)},
      {"cuMemAllocAsync", cu.cuMemAllocAsync(&made, 1, stream)},
      {"cuMemGetAddressRange", cu.cuMemGetAddressRange(&made, &bytes, block)},
      {"cuIpcOpenMemHandle", cu.cuIpcOpenMemHandle(&made, handle, 1)},
      {"cuMemcpyHtoD", cu.cuMemcpyHtoD(block, &word, 8)},
      {"cuMemcpyDtoHAsync", cu.cuMemcpyDtoHAsync(&word, block, 8, stream)},
      {"cuMemsetD8Async", cu.cuMemsetD8Async(block, 1, 8, stream)},
  };
  for (const auto& [call, answer] : answers)
    checks.Expect(call, answer, kFault);
  checks.ExpectTrue("nothing was done",
                    made == 0 && host == nullptr && another == nullptr &&
                        another_event == nullptr && word == 7 &&
                        priority == 7 && flags == 7 && context == nullptr);
  faulty.Recover("anew");
  return checks.failures();
}
const bool kAnswers =
    RegisterChild("answers-after-a-fault", &AnswersAfterAFault);

TEST(HostFaults, EveryCallOfTheContextSaysSo) {
  EXPECT_EQ(Child::Start("answers-after-a-fault", {}).Wait(), 0);
}

// As vmmshare's own kernels take them.
struct Pieces {
  static constexpr std::size_t kMost = 1168;
  std::uint64_t to[kMost];
  std::uint64_t from[kMost];
  std::uint64_t bytes[kMost];
  std::uint32_t end[kMost];
  std::uint32_t count;
};

// Two allocations beside each other, which outlive a context.
CUdeviceptr Mapped(Faulty* faulty) {
  const platform::DriverTable& cu = faulty->cu;
  const CUmemAllocationProp prop = Properties();
  const CUmemAccessDesc desc = Access(kReadWrite);
  CUdeviceptr address = 0;
  faulty->checks.Expect("reserve",
                        cu.cuMemAddressReserve(&address, 2 * kGranule, 0, 0, 0),
                        CUDA_SUCCESS);
  for (const CUdeviceptr at : {address, address + kGranule}) {
    CUmemGenericAllocationHandle handle = 0;
    faulty->checks.Expect("create", cu.cuMemCreate(&handle, kGranule, &prop, 0),
                          CUDA_SUCCESS);
    faulty->checks.Expect("map", cu.cuMemMap(at, kGranule, 0, handle, 0),
                          CUDA_SUCCESS);
  }
  faulty->checks.Expect("access",
                        cu.cuMemSetAccess(address, 2 * kGranule, &desc, 1),
                        CUDA_SUCCESS);
  return address;
}

int OwnKernelsGoWrong(const std::vector<std::string>&) {
  Faulty faulty;
  CUdeviceptr nowhere = kNowhere;
  std::uint64_t nothing = 0;
  std::uint64_t one = 1;
  CUdeviceptr& block = faulty.block;
  faulty.Launch("reads", {&block});  // Once where it may.
  faulty.Launch("reads", {&nowhere});
  faulty.Recover("a read");
  faulty.Launch("vmmshare_fence_meet", {&nowhere, &one, &nothing, &nothing});
  faulty.Recover("a signal");
  faulty.Launch("vmmshare_fence_meet", {&nothing, &nothing, &nowhere, &one});
  faulty.Recover("a wait");
  faulty.Launch("vmmshare_fence_add", {&nothing, &one});  // To no address.
  faulty.Launch("vmmshare_fence_add", {&nowhere, &one});
  faulty.Recover("an addition");
  CUdeviceptr across = Mapped(&faulty) + kGranule - 4;
  faulty.Launch("vmmshare_fence_add", {&across, &one});
  faulty.Recover("a word of two allocations");
  for (const char* kernel : {"vmmshare_copy_many", "vmmshare_crc32c_many"}) {
    for (const bool from_nowhere : {false, true}) {
      const auto pieces = std::make_unique<Pieces>();
      pieces->count = 1;
      pieces->to[0] = from_nowhere ? block : kNowhere;
      pieces->from[0] = from_nowhere ? kNowhere : block;
      pieces->bytes[0] = 32;
      faulty.Launch(kernel, {pieces.get()});
      faulty.Recover(kernel);
    }
  }
  return faulty.checks.failures();
}
const bool kOwnKernels =
    RegisterChild("own-kernels-go-wrong", &OwnKernelsGoWrong);

TEST(HostFaults, OfVmmsharesOwnKernels) {
  EXPECT_EQ(Child::Start("own-kernels-go-wrong", {}).Wait(), 0);
}

int LosesAccess(const std::vector<std::string>&) {
  Faulty faulty;
  const platform::DriverTable& cu = faulty.cu;
  Checks& checks = faulty.checks;
  CUmemoryPool pool = nullptr;
  CUdeviceptr remote = 0;
  CUstream stream = nullptr;
  CUstream other = nullptr;
  CUevent event = nullptr;
  const CUdeviceptr mapped = Mapped(&faulty);
  const CUdeviceptr gate = mapped;
  const CUmemPoolProps props = PoolProperties(0, 1);
  checks.Expect("pool", cu.cuMemPoolCreate(&pool, &props), CUDA_SUCCESS);
  const CUmemAccessDesc all = Access(kReadWrite, 0);
  const CUmemAccessDesc none = Access(kNoAccess, 0);
  checks.Expect("access", cu.cuMemPoolSetAccess(pool, &all, 1), CUDA_SUCCESS);
  checks.Expect("take", cu.cuMemAllocFromPoolAsync(&remote, 64, pool, nullptr),
                CUDA_SUCCESS);
  checks.Expect("zero", FillAndWait(cu, gate, 0, 16), CUDA_SUCCESS);
  checks.Expect("stream", cu.cuStreamCreate(&stream, 1), CUDA_SUCCESS);
  checks.Expect("stream", cu.cuStreamCreate(&other, 1), CUDA_SUCCESS);
  checks.Expect("wait", cu.cuStreamWaitValue64(stream, gate, 1, 0),
                CUDA_SUCCESS);
  checks.Expect("fill", cu.cuMemsetD8Async(remote, 1, 64, stream),
                CUDA_SUCCESS);
  checks.Expect("more", cu.cuMemsetD8Async(gate + 8, 1, 8, stream),
                CUDA_SUCCESS);
  checks.Expect("event", cu.cuEventCreate(&event, 2), CUDA_SUCCESS);
  checks.Expect("record", cu.cuEventRecord(event, stream), CUDA_SUCCESS);
  checks.Expect("no access", cu.cuMemPoolSetAccess(pool, &none, 1),
                CUDA_SUCCESS);
  checks.Expect("go", cu.cuStreamWriteValue64(other, gate, 1, 0), CUDA_SUCCESS);
  checks.Expect("the event is done all the same", cu.cuEventSynchronize(event),
                kFault);
  checks.Expect("the fault", cu.cuStreamSynchronize(stream), kFault);
  faulty.Recover("access lost");
  std::uint64_t left = 7;
  checks.Expect("memory", cu.cuMemcpyDtoH(&left, mapped + 8, 8), CUDA_SUCCESS);
  checks.ExpectTrue("what came after is left out", left == 0);
  return checks.failures();
}
const bool kLosesAccess = RegisterChild("loses-access", &LosesAccess);

TEST(HostFaults, OfWorkWhoseMemoryItsDeviceMayNoMoreReach) {
  EXPECT_EQ(Child::Start("loses-access", {}).Wait(), 0);
}

// Streams that wait for what does not come, when another one of their context
// faults.
int WaitsBesideAFault(const std::vector<std::string>&) {
  Faulty faulty;
  const platform::DriverTable& cu = faulty.cu;
  Checks& checks = faulty.checks;
  constexpr unsigned kApart = CU_STREAM_NON_BLOCKING;
  CUcontext here = nullptr;
  CUcontext there = nullptr;
  CUstream remote = nullptr;
  CUevent never = nullptr;
  CUdeviceptr remote_gate = 0;
  checks.Expect("here", cu.cuCtxGetCurrent(&here), CUDA_SUCCESS);
  checks.Expect("there", cu.cuDevicePrimaryCtxRetain(&there, 1), CUDA_SUCCESS);
  checks.Expect("there", cu.cuCtxSetCurrent(there), CUDA_SUCCESS);
  checks.Expect("gate", cu.cuMemAlloc(&remote_gate, 64), CUDA_SUCCESS);
  checks.Expect("zero", FillAndWait(cu, remote_gate, 0, 64), CUDA_SUCCESS);
  checks.Expect("stream", cu.cuStreamCreate(&remote, kApart), CUDA_SUCCESS);
  checks.Expect("event", cu.cuEventCreate(&never, 2), CUDA_SUCCESS);
  checks.Expect("hold", cu.cuStreamWaitValue64(remote, remote_gate, 1, 0),
                CUDA_SUCCESS);
  checks.Expect("record", cu.cuEventRecord(never, remote), CUDA_SUCCESS);
  checks.Expect("here", cu.cuCtxSetCurrent(here), CUDA_SUCCESS);

  const CUdeviceptr gate = faulty.block;
  CUstream streams[2] = {};
  CUevent after[2] = {};
  checks.Expect("zero", FillAndWait(cu, gate, 0, 64), CUDA_SUCCESS);
  for (int i = 0; i < 2; ++i) {
    checks.Expect("stream", cu.cuStreamCreate(&streams[i], kApart),
                  CUDA_SUCCESS);
    checks.Expect("event", cu.cuEventCreate(&after[i], 2), CUDA_SUCCESS);
    checks.Expect("wait",
                  i == 0 ? cu.cuStreamWaitValue64(streams[i], gate, 1, 0)
                         : cu.cuStreamWaitEvent(streams[i], never, 0),
                  CUDA_SUCCESS);
    checks.Expect("record", cu.cuEventRecord(after[i], streams[i]),
                  CUDA_SUCCESS);
    checks.Expect("it waits", cu.cuEventQuery(after[i]), CUDA_ERROR_NOT_READY);
  }
  // Most likely it waits when the fault comes; what it answers is the same anyway.
  CUresult synchronized = CUDA_SUCCESS;
  std::thread thread(
      [&] { synchronized = cu.cuStreamSynchronize(streams[0]); });
  faulty.Launch("asks", {});
  checks.Expect("the fault", cu.cuStreamSynchronize(nullptr), kFault);
  thread.join();
  checks.Expect("who waited already", synchronized, kFault);
  checks.Expect("a value", cu.cuEventSynchronize(after[0]), kFault);
  checks.Expect("an event", cu.cuEventSynchronize(after[1]), kFault);

  checks.Expect("there", cu.cuCtxSetCurrent(there), CUDA_SUCCESS);
  checks.Expect("which goes on", cu.cuEventQuery(never), CUDA_ERROR_NOT_READY);
  checks.Expect("release", cu.cuDevicePrimaryCtxRelease(1), CUDA_SUCCESS);
  checks.Expect("here", cu.cuCtxSetCurrent(here), CUDA_SUCCESS);
  faulty.Recover("anew");
  return checks.failures();
}
const bool kWaitsBesideAFault =
    RegisterChild("waits-beside-a-fault", &WaitsBesideAFault);

TEST(HostFaults, NoStreamOfTheContextGoesOnWaiting) {
  EXPECT_EQ(Child::Start("waits-beside-a-fault", {}).Wait(), 0);
}

}  // namespace
}  // namespace vmm::testing
