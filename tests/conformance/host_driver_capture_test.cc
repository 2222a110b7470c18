// Captures of the host-memory driver: what an invalid one answers, and the model's
// own rules.
#include <cstdint>
#include <vector>

#include "tests/conformance/host_driver_test.h"

namespace vmm::testing {
namespace {

constexpr CUstreamCaptureMode kGlobal = CU_STREAM_CAPTURE_MODE_GLOBAL;
constexpr CUstreamCaptureMode kThreadLocal =
    CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
constexpr CUstreamCaptureMode kRelaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
constexpr CUresult kInvalidated = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
constexpr CUresult kUnsupported = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;

class HostCaptures : public Conformance {
 protected:
  HostCaptures() : stream(MakeStream()), other(MakeStream()) {}

  void Begin(CUstream of, CUstreamCaptureMode mode = kRelaxed) {
    ASSERT_EQ(cu.cuStreamBeginCapture(of, mode), CUDA_SUCCESS);
  }

  const CUstream stream;
  const CUstream other;
};

TEST_F(HostCaptures, RefuseArgumentsThatCannotBe) {
  auto behind = static_cast<CUstreamCaptureMode>(3);
  CUgraph graph = nullptr;
  CUgraphExec made = nullptr;
  const CUgraphExec known = [&] {
    Begin(stream);
    return EndCaptureAsGraph(stream);
  }();
  // Both are things to launch or to make more of.
  const auto as_graph = reinterpret_cast<CUgraph>(known);
  ExpectAnswers({
      {"begin", cu.cuStreamBeginCapture(stream, behind), kInvalid},
      {"end to nowhere", cu.cuStreamEndCapture(stream, nullptr), kInvalid},
      {"end of none", cu.cuStreamEndCapture(stream, &graph),
       CUDA_ERROR_ILLEGAL_STATE},
      {"status to nowhere", cu.cuStreamIsCapturing(stream, nullptr), kInvalid},
      {"exchange", cu.cuThreadExchangeStreamCaptureMode(nullptr), kInvalid},
      {"exchange", cu.cuThreadExchangeStreamCaptureMode(&behind), kInvalid},
      {"make nowhere", cu.cuGraphInstantiate(nullptr, as_graph, 0), kInvalid},
      {"make with flags", cu.cuGraphInstantiate(&made, as_graph, 1), kInvalid},
      {"make of nothing", cu.cuGraphInstantiate(&made, nullptr, 0), kInvalid},
      {"launch nothing", cu.cuGraphLaunch(nullptr, stream), kInvalid},
      {"destroy nothing", cu.cuGraphDestroy(nullptr), kInvalid},
      {"nor this", cu.cuGraphExecDestroy(nullptr), kInvalid},
  });
  EXPECT_EQ(StatusOf(stream), CU_STREAM_CAPTURE_STATUS_NONE);
  EXPECT_EQ(made, nullptr);
}

TEST_F(HostCaptures, ThatAreInvalidTakeNothingMore) {
  const CUdeviceptr address = Memory();
  const CUevent event = MakeEvent();
  const CUevent inside = MakeEvent();
  EXPECT_EQ(cu.cuEventRecord(event, other), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamSynchronize(other), CUDA_SUCCESS);
  Begin(other);
  EXPECT_EQ(cu.cuMemsetD8Async(address, 1, 8, other), CUDA_SUCCESS);
  const CUgraphExec graph = EndCaptureAsGraph(other);
  std::uint64_t word = 7;
  Begin(stream);
  ExpectAnswers({
      {"breaks it", cu.cuStreamSynchronize(stream), kUnsupported},
      {"synchronize", cu.cuStreamSynchronize(stream), kUnsupported},
      {"query", cu.cuStreamQuery(stream), kUnsupported},
      {"fill", cu.cuMemsetD8Async(address, 1, 8, stream), kInvalidated},
      {"copy", cu.cuMemcpyDtoHAsync(&word, address, 8, stream), kInvalidated},
      {"record", cu.cuEventRecord(inside, stream), kInvalidated},
      {"wait", cu.cuStreamWaitEvent(stream, event, 0), kInvalidated},
      {"graph", cu.cuGraphLaunch(graph, stream), kInvalidated},
      {"the event", cu.cuEventSynchronize(inside), CUDA_SUCCESS},
      {"its end", EndCapture(stream), kInvalidated},
  });
  EXPECT_EQ(Word(address), 0u);
  EXPECT_EQ(word, 7u);
}

TEST_F(HostCaptures, HaveOneStream) {
  const CUevent event = MakeEvent();
  Begin(stream);
  ExpectAnswers({
      {"record", cu.cuEventRecord(event, stream), CUDA_SUCCESS},
      {"in order anyway", cu.cuStreamWaitEvent(stream, event, 0), CUDA_SUCCESS},
      {"a second one", cu.cuStreamWaitEvent(other, event, 0),
       CUDA_ERROR_NOT_SUPPORTED},
      {"its end", EndCapture(stream), CUDA_SUCCESS},
  });
}

TEST_F(HostCaptures, AWaitForAllTheContextDoesBreaksThem) {
  Begin(stream);
  EXPECT_EQ(cu.cuCtxSynchronize(), kUnsupported);
  EXPECT_EQ(StatusOf(stream), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  EXPECT_EQ(cu.cuCtxSynchronize(), kUnsupported);
  EXPECT_EQ(EndCapture(stream), kInvalidated);
}

TEST_F(HostCaptures, AFillThatWaitsBreaksThemWhateverItsWidth) {
  const CUdeviceptr address = Memory();
  const auto fill16 =
      FindExport<CUresult(CUdeviceptr, unsigned short, std::size_t)>(
          "cuMemsetD16_v2");
  Begin(stream, kGlobal);
  EXPECT_EQ(cu.cuMemsetD8(address, 1, 8), kUnsupported);
  EXPECT_EQ(EndCapture(stream), kInvalidated);
  Begin(stream, kGlobal);
  EXPECT_EQ(fill16(address, 1, 8), kUnsupported);
  EXPECT_EQ(EndCapture(stream), kInvalidated);
  Begin(stream, kGlobal);
  EXPECT_EQ(cu.cuMemsetD32(address, 1, 8), kUnsupported);
  EXPECT_EQ(EndCapture(stream), kInvalidated);
}

TEST_F(HostCaptures, ThoseOfAnotherContextAreLeftAlone) {
  const CUcontext here = Current();
  const CUdeviceptr address = Memory();
  MakeStream(CU_STREAM_DEFAULT);
  CUcontext there = nullptr;
  CUstream remote = nullptr;
  ASSERT_EQ(cu.cuDevicePrimaryCtxRetain(&there, 1), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuCtxSetCurrent(there), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuStreamCreate(&remote, CU_STREAM_DEFAULT), CUDA_SUCCESS);
  Begin(remote);
  ASSERT_EQ(cu.cuCtxSetCurrent(here), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemsetD8Async(address, 1, 8, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(StatusOf(remote), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  // It goes with its context, and is in nobody's way then.
  EXPECT_EQ(cu.cuDevicePrimaryCtxRelease(1), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamSynchronize(nullptr), CUDA_SUCCESS);
}

// As an H200 (580) answers.
TEST_F(HostCaptures,
       AreLostByAQuestionAfterTheirFlagsAndNotAfterTheirPriority) {
  auto* const flags_of =
      FindExport<decltype(::cuStreamGetFlags)>("cuStreamGetFlags");
  auto* const priority_of =
      FindExport<decltype(::cuStreamGetPriority)>("cuStreamGetPriority");
  unsigned int flags = 0;
  int priority = 0;
  Begin(stream);
  ExpectAnswers({
      {"priority", priority_of(stream, &priority), CUDA_SUCCESS},
      {"flags", flags_of(stream, &flags), kUnsupported},
      {"priority", priority_of(stream, &priority), kInvalidated},
      {"flags", flags_of(stream, &flags), kUnsupported},
      {"its end", EndCapture(stream), kInvalidated},
  });
  const CUstream blocking = MakeStream(CU_STREAM_DEFAULT);
  for (const bool of_flags : {true, false}) {
    Begin(blocking);
    EXPECT_EQ(
        of_flags ? flags_of(nullptr, &flags) : priority_of(nullptr, &priority),
        CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    EXPECT_EQ(EndCapture(blocking), kInvalidated);
  }
}

TEST_F(HostCaptures, GoWithTheirStream) {
  CUstream short_lived = nullptr;
  ASSERT_EQ(cu.cuStreamCreate(&short_lived, CU_STREAM_NON_BLOCKING),
            CUDA_SUCCESS);
  Begin(short_lived, kGlobal);
  CUdeviceptr block = 0;
  EXPECT_EQ(cu.cuMemAlloc(&block, 1), kUnsupported);
  EXPECT_EQ(cu.cuStreamDestroy(short_lived), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemAlloc(&block, 1), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemFree(block), CUDA_SUCCESS);
}

TEST_F(HostCaptures, AThreadThatLooksAtItsOwnAloneIsHeldByThoseNotRelaxed) {
  const CUevent event = MakeEvent();
  CUstreamCaptureMode exchanged = kThreadLocal;
  ASSERT_EQ(cu.cuThreadExchangeStreamCaptureMode(&exchanged), CUDA_SUCCESS);
  for (const CUstreamCaptureMode mode : {kGlobal, kThreadLocal, kRelaxed}) {
    Begin(stream, mode);
    EXPECT_EQ(cu.cuEventQuery(event),
              mode == kRelaxed ? CUDA_SUCCESS : kUnsupported);
    EXPECT_EQ(EndCapture(stream),
              mode == kRelaxed ? CUDA_SUCCESS : kInvalidated);
  }
  EXPECT_EQ(cu.cuThreadExchangeStreamCaptureMode(&exchanged), CUDA_SUCCESS);
}

TEST_F(HostCaptures, LeaveNoPlaceForACopyByTheNullStream) {
  const CUdeviceptr address = Memory();
  const CUstream blocking = MakeStream(CU_STREAM_DEFAULT);
  const std::uint64_t word = 7;
  Begin(blocking);
  EXPECT_EQ(cu.cuMemcpyHtoD(address, &word, sizeof(word)),
            CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  EXPECT_EQ(EndCapture(blocking), kInvalidated);
  EXPECT_EQ(Word(address), 0u);
}

TEST_F(HostCaptures, MakeNoMemory) {
  CUmemoryPool pool = nullptr;
  CUdeviceptr address = 0;
  CUdeviceptr block = 0;
  ASSERT_EQ(cu.cuDeviceGetMemPool(&pool, 0), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuMemAllocAsync(&block, 8, other), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuStreamSynchronize(other), CUDA_SUCCESS);
  Begin(stream);
  ExpectAnswers({
      {"allocate", cu.cuMemAllocAsync(&address, 8, stream),
       CUDA_ERROR_NOT_SUPPORTED},
      {"of a pool", cu.cuMemAllocFromPoolAsync(&address, 8, pool, stream),
       CUDA_ERROR_NOT_SUPPORTED},
      {"its end", EndCapture(stream), CUDA_SUCCESS},
  });
  Begin(stream);
  ExpectAnswers({
      {"breaks it", cu.cuStreamSynchronize(stream), kUnsupported},
      {"allocate", cu.cuMemAllocAsync(&address, 8, stream), kInvalidated},
      {"of a pool", cu.cuMemAllocFromPoolAsync(&address, 8, pool, stream),
       kInvalidated},
      {"free", cu.cuMemFreeAsync(block, stream), kInvalidated},
      {"its end", EndCapture(stream), kInvalidated},
  });
  EXPECT_EQ(address, 0u);
  EXPECT_EQ(cu.cuMemFreeAsync(block, other), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamSynchronize(other), CUDA_SUCCESS);
}

TEST_F(HostCaptures, ACopyToTheProgramsMemoryIsDoneAtEachLaunch) {
  const CUdeviceptr address = Memory();
  std::uint64_t word = 7;
  Begin(stream);
  EXPECT_EQ(cu.cuMemcpyDtoHAsync(&word, address, sizeof(word), stream),
            CUDA_SUCCESS);
  const CUgraphExec graph = EndCaptureAsGraph(stream);
  EXPECT_EQ(word, 7u);
  for (const unsigned char value : {1, 2}) {
    EXPECT_EQ(cu.cuMemsetD8Async(address, value, 8, other), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuGraphLaunch(graph, other), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuStreamSynchronize(other), CUDA_SUCCESS);
    EXPECT_EQ(word, value * 0x0101010101010101u);
  }
}

// The wait, and the signal of a kernel, are the graph's.
TEST_F(HostCaptures, AGraphDoesAllItsWorkWhenItsStreamHasGone) {
  const CUdeviceptr gate = Memory();
  CUmodule module = nullptr;
  CUfunction meet = nullptr;
  ASSERT_EQ(cu.cuModuleLoadData(&module, kModuleText), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuModuleGetFunction(&meet, module, "vmmshare_fence_meet"),
            CUDA_SUCCESS);
  CUstream short_lived = nullptr;
  ASSERT_EQ(cu.cuStreamCreate(&short_lived, CU_STREAM_NON_BLOCKING),
            CUDA_SUCCESS);
  Begin(short_lived);
  std::uint64_t signal_at = gate + 8;
  std::uint64_t signal = 5;
  std::uint64_t nothing = 0;
  void* arguments[] = {&signal_at, &signal, &nothing, &nothing};
  EXPECT_EQ(cu.cuStreamWaitValue64(short_lived, gate, 1, 0), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuLaunchKernel(meet, 1, 1, 1, 1, 1, 1, 0, short_lived, arguments,
                              nullptr),
            CUDA_SUCCESS);
  const CUgraphExec graph = EndCaptureAsGraph(short_lived);
  EXPECT_EQ(cu.cuStreamDestroy(short_lived), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuGraphLaunch(graph, stream), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(cu.cuStreamWriteValue64(other, gate, 1, 0), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_EQ(Word(gate + 8), signal);
  EXPECT_EQ(cu.cuModuleUnload(module), CUDA_SUCCESS);
}

TEST_F(HostCaptures, AGraphIsLaunchedAfterAStreamThatIsBeingDestroyed) {
  const CUdeviceptr gate = Memory();
  const CUdeviceptr address = Memory();
  CUstream short_lived = nullptr;
  ASSERT_EQ(cu.cuStreamCreate(&short_lived, CU_STREAM_NON_BLOCKING),
            CUDA_SUCCESS);
  Begin(stream);
  EXPECT_EQ(cu.cuMemsetD8Async(address, 1, 8, stream), CUDA_SUCCESS);
  const CUgraphExec graph = EndCaptureAsGraph(stream);
  EXPECT_EQ(cu.cuStreamWaitValue64(short_lived, gate, 1, 0), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuGraphLaunch(graph, short_lived), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamDestroy(short_lived), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuGraphLaunch(graph, stream), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(cu.cuStreamWriteValue64(other, gate, 1, 0), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_EQ(Word(address), 0x0101010101010101u);
  // By now nothing is left to wait for.
  EXPECT_EQ(cu.cuGraphLaunch(graph, other), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamSynchronize(other), CUDA_SUCCESS);
}

}  // namespace
}  // namespace vmm::testing
