// Capture of streams into graphs: what it forbids whom, and what survives.
// Measured on an H200 with driver 580.
#include <gmock/gmock.h>

#include <thread>

#include "tests/conformance/conformance.h"
#include "tests/support/test_driver.h"

namespace vmm::testing {
namespace {

class Captures : public Conformance {
 protected:
  Captures() : stream(MakeStream()), other(MakeStream()) {}

  void Begin(CUstreamCaptureMode mode) {
    ASSERT_EQ(cu.cuStreamBeginCapture(stream, mode), CUDA_SUCCESS);
  }
  CUresult End() { return EndCapture(stream); }
  // An event recorded in `other`, which the GPU has passed.
  CUevent Passed() {
    const CUevent event = MakeEvent();
    EXPECT_EQ(cu.cuEventRecord(event, other), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuStreamSynchronize(other), CUDA_SUCCESS);
    return event;
  }
  CUresult QueryElsewhere(CUevent event, CUstreamCaptureMode mode) {
    CUresult result = CUDA_SUCCESS;
    std::thread([&] {
      EXPECT_EQ(cu.cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
      EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
      result = cu.cuEventQuery(event);
    }).join();
    return result;
  }

  const CUstream stream;
  const CUstream other;
};

constexpr CUstreamCaptureMode kGlobal = CU_STREAM_CAPTURE_MODE_GLOBAL;
constexpr CUstreamCaptureMode kThreadLocal =
    CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
constexpr CUstreamCaptureMode kRelaxed = CU_STREAM_CAPTURE_MODE_RELAXED;

TEST_F(Captures, AreSeen) {
  EXPECT_EQ(StatusOf(stream), CU_STREAM_CAPTURE_STATUS_NONE);
  Begin(kRelaxed);
  EXPECT_EQ(StatusOf(stream), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EXPECT_EQ(StatusOf(other), CU_STREAM_CAPTURE_STATUS_NONE);
  EXPECT_EQ(cu.cuStreamBeginCapture(stream, kRelaxed),
            CUDA_ERROR_ILLEGAL_STATE);
  EXPECT_EQ(End(), CUDA_SUCCESS);
  EXPECT_EQ(StatusOf(stream), CU_STREAM_CAPTURE_STATUS_NONE);
  EXPECT_EQ(End(), CUDA_ERROR_ILLEGAL_STATE);
}

TEST_F(Captures, TheLegacyStreamHasNone) {
  EXPECT_EQ(cu.cuStreamBeginCapture(CU_STREAM_LEGACY, kRelaxed),
            CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

TEST_F(Captures, DoNotSurviveAQuestionAfterTheirStream) {
  for (CUstreamCaptureMode mode : {kGlobal, kThreadLocal, kRelaxed}) {
    Begin(mode);
    EXPECT_EQ(cu.cuStreamQuery(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    EXPECT_EQ(StatusOf(stream), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    EXPECT_EQ(End(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  }
}

TEST_F(Captures, HaveAModeThatForbidsQuestionsOfTheirThread) {
  const CUevent event = Passed();
  for (CUstreamCaptureMode mode : {kGlobal, kThreadLocal, kRelaxed}) {
    Begin(mode);
    EXPECT_EQ(cu.cuEventQuery(event),
              mode == kRelaxed ? CUDA_SUCCESS
                               : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    EXPECT_EQ(End(), mode == kRelaxed ? CUDA_SUCCESS
                                      : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    // A thread that is relaxed for a moment breaks none.
    Begin(mode);
    CUstreamCaptureMode exchanged = kRelaxed;
    EXPECT_EQ(cu.cuThreadExchangeStreamCaptureMode(&exchanged), CUDA_SUCCESS);
    EXPECT_EQ(exchanged, kGlobal);
    EXPECT_EQ(cu.cuEventQuery(event), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuThreadExchangeStreamCaptureMode(&exchanged), CUDA_SUCCESS);
    EXPECT_EQ(exchanged, kRelaxed);
    EXPECT_EQ(End(), CUDA_SUCCESS);
  }
}

TEST_F(Captures, OfTheGlobalModeForbidQuestionsOfOtherThreads) {
  const CUevent event = Passed();
  for (CUstreamCaptureMode mode : {kGlobal, kThreadLocal, kRelaxed}) {
    for (CUstreamCaptureMode asking : {kGlobal, kThreadLocal, kRelaxed}) {
      const bool breaks = mode == kGlobal && asking == kGlobal;
      Begin(mode);
      EXPECT_EQ(QueryElsewhere(event, asking),
                breaks ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS);
      EXPECT_EQ(End(),
                breaks ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS);
    }
  }
}

TEST_F(Captures, TakeAnEventThatIsNeverDone) {
  const CUevent event = MakeEvent();
  Begin(kRelaxed);
  EXPECT_EQ(cu.cuEventRecord(event, stream), CUDA_SUCCESS);
  EXPECT_EQ(End(), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuEventQuery(event), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuEventRecord(event, other), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuEventSynchronize(event), CUDA_SUCCESS);
}

// What is recorded there is neither waited for nor asked after when it is over.
TEST_F(Captures, LeaveNothingToWaitFor) {
  const CUevent event = Passed();
  Begin(kRelaxed);
  EXPECT_EQ(cu.cuEventRecord(event, stream), CUDA_SUCCESS);
  EXPECT_EQ(End(), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuEventQuery(event), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuEventSynchronize(event), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuStreamWaitEvent(other, event, 0), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cu.cuEventRecord(event, other), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuEventSynchronize(event), CUDA_SUCCESS) << "recorded anew";
}

TEST_F(Captures, AreLostByAQuestionAfterWhatIsRecordedInThem) {
  const CUevent event = MakeEvent();
  Begin(kRelaxed);
  CUstreamCaptureMode mode = kRelaxed;
  ASSERT_EQ(cu.cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuEventRecord(event, stream), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuEventQuery(event), CUDA_ERROR_CAPTURED_EVENT);
  EXPECT_EQ(StatusOf(stream), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  EXPECT_EQ(cu.cuEventSynchronize(event), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuStreamWaitEvent(other, event, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuStreamWaitEvent(stream, Passed(), 0),
            CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(cu.cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
  EXPECT_EQ(End(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_F(Captures, TakeNoEventOfSeveralProcesses) {
  const CUevent event =
      MakeEvent(CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING);
  ASSERT_EQ(cu.cuEventRecord(event, other), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuStreamSynchronize(other), CUDA_SUCCESS);
  Begin(kRelaxed);
  EXPECT_EQ(cu.cuEventRecord(event, stream),
            CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(StatusOf(stream), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EXPECT_EQ(cu.cuStreamWaitEvent(stream, event, 0),
            CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(StatusOf(stream), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  EXPECT_EQ(End(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(cu.cuEventSynchronize(event), CUDA_SUCCESS) << "as it was before";
}

// At each launch, for what was recorded last by then.
TEST_F(Captures, WaitForWhatIsOutsideWhereThatIsSaid) {
  const CUdeviceptr address = Memory();
  const CUevent event = MakeEvent();
  EXPECT_EQ(cu.cuStreamWaitEvent(stream, event, CU_EVENT_WAIT_EXTERNAL),
            CUDA_ERROR_ILLEGAL_STATE)
      << "outside of a capture";
  EXPECT_EQ(cu.cuStreamWaitEvent(stream, event, 2), CUDA_ERROR_INVALID_VALUE);
  Begin(kRelaxed);
  ASSERT_EQ(cu.cuStreamWaitEvent(stream, event, CU_EVENT_WAIT_EXTERNAL),
            CUDA_SUCCESS);
  ASSERT_EQ(cu.cuMemsetD8Async(address, 1, 8, stream), CUDA_SUCCESS);
  const CUgraphExec graph = EndCaptureAsGraph(stream);
  ASSERT_EQ(cu.cuStreamWaitValue64(other, address + 64, 1, 0), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuEventRecord(event, other), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuGraphLaunch(graph, stream), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
  const CUstream third = MakeStream();
  ASSERT_EQ(cu.cuStreamWriteValue64(third, address + 64, 1, 0), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_EQ(Word(address), 0x0101010101010101u);
}

// What does not change may be asked, until the capture is lost.
TEST_F(Captures, TellTheirContextWhileTheyLast) {
  CUcontext context = nullptr;
  Begin(kGlobal);
  EXPECT_EQ(cu.cuStreamGetCtx(stream, &context), CUDA_SUCCESS);
  EXPECT_EQ(context, Current());
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(cu.cuStreamQuery(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    EXPECT_EQ(cu.cuStreamSynchronize(stream),
              CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  }
  EXPECT_EQ(cu.cuStreamGetCtx(stream, &context),
            CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(End(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(cu.cuStreamGetCtx(stream, &context), CUDA_SUCCESS);
}

TEST_F(Captures, DoNotWaitForWhatIsOutside) {
  const CUevent event = Passed();
  Begin(kRelaxed);
  EXPECT_EQ(cu.cuStreamWaitEvent(stream, event, 0),
            CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
  EXPECT_EQ(End(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_F(Captures, OfABlockingStreamLeaveNoPlaceForTheLegacyOne) {
  const CUdeviceptr address = Memory();
  CUstream blocking = nullptr;
  ASSERT_EQ(cu.cuStreamCreate(&blocking, CU_STREAM_DEFAULT), CUDA_SUCCESS);
  CUstreamCaptureStatus status{};
  ASSERT_EQ(cu.cuStreamBeginCapture(blocking, kRelaxed), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamIsCapturing(nullptr, &status),
            CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  EXPECT_EQ(EndCapture(blocking), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuStreamBeginCapture(blocking, kRelaxed), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemsetD8Async(address, 1, 8, nullptr),
            CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  EXPECT_EQ(EndCapture(blocking), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(cu.cuStreamDestroy(blocking), CUDA_SUCCESS);
}

// But whether it is captured: each of these loses the capture.
TEST_F(Captures, OfABlockingStreamSurviveNoQuestionAfterTheLegacyOne) {
  const CUstream blocking = MakeStream(CU_STREAM_DEFAULT);
  CUcontext context = nullptr;
  CUgraph graph = nullptr;
  const auto expect_lost = [&](const char* name, auto call) {
    ASSERT_EQ(cu.cuStreamBeginCapture(blocking, kRelaxed), CUDA_SUCCESS);
    EXPECT_EQ(call(), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) << name;
    EXPECT_EQ(EndCapture(blocking), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)
        << name;
  };
  expect_lost("context", [&] { return cu.cuStreamGetCtx(nullptr, &context); });
  expect_lost("query", [&] { return cu.cuStreamQuery(nullptr); });
  expect_lost("a fill of nothing", [&] { return cu.cuMemsetD8(1, 0, 0); });
  expect_lost("a capture",
              [&] { return cu.cuStreamBeginCapture(nullptr, kRelaxed); });
  expect_lost("its end",
              [&] { return cu.cuStreamEndCapture(nullptr, &graph); });
}

TEST_F(Captures, EndOnTheirThread) {
  Begin(kThreadLocal);
  CUresult result = CUDA_SUCCESS;
  CUgraph graph = nullptr;
  std::thread([&] { result = cu.cuStreamEndCapture(stream, &graph); }).join();
  EXPECT_EQ(result, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
  EXPECT_EQ(End(), CUDA_ERROR_ILLEGAL_STATE) << "it was ended all the same";
}

TEST_F(Captures, BecomeGraphsThatDoTheirWorkAtEachLaunch) {
  const CUdeviceptr address = Memory();
  Begin(kGlobal);
  EXPECT_EQ(cu.cuMemsetD8Async(address, 1, 8, stream), CUDA_SUCCESS);
  const CUgraphExec made = EndCaptureAsGraph(stream);
  EXPECT_EQ(Word(address), 0u);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(cu.cuMemsetD8Async(address, 0, 8, other), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuGraphLaunch(made, other), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuStreamSynchronize(other), CUDA_SUCCESS);
    EXPECT_EQ(Word(address), 0x0101010101010101u);
  }
}

TEST_F(Captures, BecomeGraphsThatCopyWhatIsThereAtEachLaunch) {
  const CUdeviceptr address = Memory();
  std::uint64_t word = 7;
  Begin(kGlobal);
  EXPECT_EQ(cu.cuMemcpyHtoDAsync(address, &word, sizeof(word), stream),
            CUDA_SUCCESS);
  const CUgraphExec made = EndCaptureAsGraph(stream);
  for (const std::uint64_t value : {8u, 9u}) {
    word = value;
    EXPECT_EQ(cu.cuGraphLaunch(made, other), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuStreamSynchronize(other), CUDA_SUCCESS);
    EXPECT_EQ(Word(address), value);
  }
}

TEST_F(Captures, BecomeGraphsThatAreLaunchedOneAfterTheOther) {
  const CUdeviceptr address = Memory();
  const CUdeviceptr gate = Memory();
  const CUdeviceptr elsewhere = Memory();
  const CUstream third = MakeStream();
  Begin(kGlobal);
  EXPECT_EQ(cu.cuMemsetD8Async(address, 1, 8, stream), CUDA_SUCCESS);
  const CUgraphExec made = EndCaptureAsGraph(stream);
  ASSERT_EQ(cu.cuStreamWaitValue64(stream, gate, 1, 0), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuGraphLaunch(made, stream), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuGraphLaunch(made, other), CUDA_SUCCESS);
  // So that it had the time; what is seen is the same anyway.
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(cu.cuMemsetD8Async(elsewhere, 1, 8, third), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuStreamSynchronize(third), CUDA_SUCCESS);
  }
  EXPECT_EQ(cu.cuStreamQuery(other), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(Word(address), 0u);
  EXPECT_EQ(cu.cuStreamWriteValue64(third, gate, 1, 0), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamSynchronize(other), CUDA_SUCCESS);
  EXPECT_EQ(Word(address), 0x0101010101010101u);
  EXPECT_EQ(cu.cuStreamSynchronize(stream), CUDA_SUCCESS);
}

}  // namespace
}  // namespace vmm::testing
