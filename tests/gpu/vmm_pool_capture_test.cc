// Pool beside the capture of a stream into a graph, in each of the three modes:
// what is refused, what works, and that nobody's work on the pool ever
// invalidates a capture. Nor does whatever else makes, maps, opens or gives back
// memory.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "tests/gpu/held_stream.h"
#include "tests/gpu/stream.h"
#include "tests/gpu/vmm_driver_test.h"
#include "tests/support/driver_faults.h"
#include "vmm/memory/adopted_memory.h"
#include "vmm/memory/allocation.h"
#include "vmm/memory/dma_buf.h"
#include "vmm/memory/internal/device_work.h"
#include "vmm/memory/internal/host_copy.h"
#include "vmm/memory/restorable_region.h"
#include "vmm/memory/stream_capture.h"
#include "vmm/pool/imported_pool.h"
#include "vmm/pool/pool.h"
#include "vmm/share/endpoint.h"
#include "vmm/share/imported_allocation.h"
#include "vmm/share/internal/protocol.h"
#include "vmm/share/restorable.h"
#include "vmm/share/retire.h"
#include "vmm/sync/fence_array.h"

namespace vmm::testing {
namespace {

using platform::DriverTable;

absl::Time Soon() { return absl::Now() + absl::Seconds(60); }

// A graph that is being captured from a stream, then one to be launched.
class Graph {
 public:
  Graph(CUstream stream, CUstreamCaptureMode mode) : stream_(stream) {
    EXPECT_EQ(TestDriver()->cuStreamBeginCapture(stream, mode), CUDA_SUCCESS);
  }
  ~Graph() {
    if (made_ != nullptr) {
      // Destroying one breaks what other threads capture, as making one does.
      const RelaxedCapture relaxed(TestDriver());
      EXPECT_EQ(TestDriver()->cuGraphExecDestroy(made_), CUDA_SUCCESS);
    }
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // Fails the test if the capture was invalidated meanwhile.
  void End() {
    CUgraph graph = nullptr;
    ASSERT_EQ(TestDriver()->cuStreamEndCapture(stream_, &graph), CUDA_SUCCESS);
    // Making one breaks what other threads capture.
    const RelaxedCapture relaxed(TestDriver());
    EXPECT_EQ(TestDriver()->cuGraphInstantiate(&made_, graph, 0), CUDA_SUCCESS);
    EXPECT_EQ(TestDriver()->cuGraphDestroy(graph), CUDA_SUCCESS);
  }
  void Launch(CUstream stream) const {
    const RelaxedCapture relaxed(TestDriver());
    EXPECT_EQ(TestDriver()->cuGraphLaunch(made_, stream), CUDA_SUCCESS);
  }

 private:
  const CUstream stream_;
  CUgraphExec made_ = nullptr;
};

class PoolCaptureTest
    : public DriverTest,
      public ::testing::WithParamInterface<CUstreamCaptureMode> {
 protected:
  void SetUp() override {
    if (!driver().Need<&DriverTable::cuGraphInstantiate>().ok()) {
      GTEST_SKIP() << "this driver has no graphs";
    }
    EXPECT_EQ(driver()->cuCtxGetCurrent(&context_), CUDA_SUCCESS);
  }
  static void ExpectWhole(const Pool& pool) {
    const absl::Status whole = pool.CheckInvariants();
    EXPECT_TRUE(whole.ok()) << whole;
    EXPECT_TRUE(pool.statistics().last_error.ok())
        << pool.statistics().last_error;
  }
  std::unique_ptr<Pool> MakePool(std::uint64_t cap = 0) {
    return Must(Pool::Create(device, {.first_segment_size = 4 * kMiB,
                                      .max_segment_size = 4 * kMiB,
                                      .cap = cap}));
  }
  // `work` on a thread of its own, with the context.
  template <typename Work>
  auto OnAThread(Work work) {
    return std::async(std::launch::async, [this, work = std::move(work)] {
      EXPECT_EQ(driver()->cuCtxSetCurrent(context_), CUDA_SUCCESS);
      return work();
    });
  }

  CUcontext context_ = nullptr;
};

INSTANTIATE_TEST_SUITE_P(
    Modes, PoolCaptureTest,
    ::testing::Values(CU_STREAM_CAPTURE_MODE_GLOBAL,
                      CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                      CU_STREAM_CAPTURE_MODE_RELAXED),
    [](const auto& mode) {
      return std::string(mode.param == CU_STREAM_CAPTURE_MODE_GLOBAL ? "Global"
                         : mode.param == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
                             ? "ThreadLocal"
                             : "Relaxed");
    });

TEST_P(PoolCaptureTest, FreeOnACapturedStreamIsRefusedAndChangesNothing) {
  const Stream stream;
  const std::unique_ptr<Pool> pool = MakePool();
  const CUdeviceptr block = Must(pool->Allocate(65536, stream.get()));
  Graph graph(stream.get(), GetParam());
  EXPECT_EQ(driver()->cuMemsetD8Async(block, 7, 65536, stream.get()),
            CUDA_SUCCESS);
  const absl::Status refused = pool->Free(block, stream.get());
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_EQ(pool->statistics().live_blocks, 1u);
  const absl::Status released = pool->ReleaseStream(stream.get(), Soon());
  EXPECT_TRUE(absl::IsFailedPrecondition(released)) << released;
  graph.End();
  EXPECT_TRUE(pool->Free(block, stream.get()).ok());
  EXPECT_TRUE(pool->ReleaseStream(stream.get(), Soon()).ok());
  ExpectWhole(*pool);
}

// A question after the legacy stream would lose the capture of one that blocks.
TEST_P(PoolCaptureTest,
       WhatIsFreedOfAllStreamsWaitsForTheCaptureOfOneThatBlocks) {
  const Stream blocking(CU_STREAM_DEFAULT);
  const Stream other;
  const std::unique_ptr<Pool> pool = MakePool(4 * kMiB);
  const CUdeviceptr first = Must(pool->Allocate(4 * kMiB, AllStreams()));
  {
    Graph beside(other.get(), GetParam());
    EXPECT_EQ(pool->Free(first, AllStreams()), absl::OkStatus());
    EXPECT_EQ(Must(pool->Allocate(4 * kMiB, AllStreams())), first);
    beside.End();
  }
  Graph graph(blocking.get(), GetParam());
  EXPECT_EQ(pool->Free(first, AllStreams()), absl::OkStatus());
  std::future<CUdeviceptr> again =
      OnAThread([&] { return Must(pool->Allocate(4 * kMiB, AllStreams())); });
  EXPECT_EQ(again.wait_for(std::chrono::milliseconds(100)),
            std::future_status::timeout);
  graph.End();
  EXPECT_EQ(again.get(), first);
  EXPECT_EQ(pool->Free(first, AllStreams()), absl::OkStatus());
  ExpectWhole(*pool);
}

// A graph's launches are in the order of no other stream: so this thread waits.
TEST_P(PoolCaptureTest, AStreamThatIsCapturedIsPutBehindAnotherByAWaitHere) {
  const Stream captured;
  const std::unique_ptr<Pool> pool = MakePool();
  HeldStream held(device);
  Graph graph(captured.get(), GetParam());
  EXPECT_EQ(pool->Order(held.get(), captured.get(),
                        absl::Now() + absl::Milliseconds(20))
                .code(),
            absl::StatusCode::kDeadlineExceeded);
  {
    const RelaxedCapture relaxed(driver());
    held.Release();
  }
  EXPECT_EQ(pool->Order(held.get(), captured.get(), Soon()), absl::OkStatus());
  EXPECT_EQ(pool->Order(nullptr, captured.get(), Soon()), absl::OkStatus());
  graph.End();
}

TEST_P(PoolCaptureTest, NoStreamIsPutBehindOneThatIsCaptured) {
  const Stream captured;
  const Stream other;
  const std::unique_ptr<Pool> pool = MakePool();
  Graph graph(captured.get(), GetParam());
  for (CUstream then : {other.get(), CUstream{nullptr}}) {
    const absl::Status refused = pool->Order(captured.get(), then, Soon());
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  }
  graph.End();
}

// A default stream is refused beside the capture of one that blocks, but is none
// that is captured.
TEST_P(PoolCaptureTest,
       ADefaultStreamIsNotAskedBesideTheCaptureOfOneThatBlocks) {
  const Stream captured(CU_STREAM_DEFAULT);
  const std::unique_ptr<Pool> pool = MakePool();
  Graph graph(captured.get(), GetParam());
  for (CUstream of_default : {CUstream{nullptr}, CU_STREAM_LEGACY}) {
    for (const absl::Status& refused :
         {pool->Order(of_default, captured.get(), Soon()),
          pool->Order(captured.get(), of_default, Soon())}) {
      EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    }
  }
  graph.End();
}

TEST_P(PoolCaptureTest, OfTwoStreamsThatAreCapturedNeitherIsPutBehindTheOther) {
  const Stream first;
  const Stream then;
  const std::unique_ptr<Pool> pool = MakePool();
  Graph one(first.get(), GetParam());
  Graph other(then.get(), GetParam());
  EXPECT_EQ(pool->Order(first.get(), then.get(), absl::InfinitePast()),
            absl::OkStatus());
  other.End();
  one.End();
}

TEST_P(PoolCaptureTest, TheDevicesWorkIsAwaitedBesideACapture) {
  const Stream captured;
  HeldStream held(device);  // That synchronises with no other.
  Graph graph(captured.get(), GetParam());
  std::future<absl::Status> awaited =
      OnAThread([this] { return AwaitDeviceWork(device); });
  EXPECT_EQ(awaited.wait_for(std::chrono::milliseconds(100)),
            std::future_status::timeout);
  {
    const RelaxedCapture relaxed(driver());
    held.Release();
  }
  EXPECT_EQ(awaited.get(), absl::OkStatus());
  graph.End();
}

// A replay uses the block as long as the graph is there, and nobody else does.
TEST_P(PoolCaptureTest, WhatIsAllocatedInACaptureIsTheGraphsUntilItIsFreed) {
  const Stream stream;
  const Stream other;
  const std::unique_ptr<Pool> pool = MakePool();
  // A part of it is the stream's already, and a part has to be got now.
  EXPECT_TRUE(
      pool->Free(Must(pool->Allocate(kMiB, stream.get())), stream.get()).ok());
  Graph graph(stream.get(), GetParam());
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 6; ++i) {
    blocks.push_back(Must(pool->Allocate(kMiB, stream.get())));
    EXPECT_EQ(driver()->cuMemsetD8Async(blocks.back(), 7, kMiB, stream.get()),
              CUDA_SUCCESS);
    const absl::Status refused = pool->Free(blocks.back(), stream.get());
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  }
  graph.End();
  std::vector<CUdeviceptr> others;
  for (int i = 0; i < 6; ++i) {
    others.push_back(Must(pool->Allocate(kMiB, other.get())));
    Fill(others.back(), 9, kMiB);
  }
  graph.Launch(stream.get());
  graph.Launch(stream.get());
  stream.Sync();
  for (CUdeviceptr block : blocks) {
    EXPECT_TRUE(Holds(block, 7, kMiB));
    EXPECT_TRUE(pool->Free(block, stream.get()).ok());
  }
  for (CUdeviceptr block : others) {
    EXPECT_TRUE(Holds(block, 9, kMiB));
    EXPECT_TRUE(pool->Free(block, other.get()).ok());
  }
  ExpectWhole(*pool);
}

// Everything that a pool asks the driver, on another thread and on this one.
TEST_P(PoolCaptureTest, WorkOnThePoolBreaksNoCapture) {
  const Stream captured;
  const Stream stream;
  const Stream another;
  const std::unique_ptr<Pool> pool = MakePool();
  const SharingDomain second = pool->NewDomain();
  // Waits for the stream that is captured next.
  EXPECT_TRUE(
      pool->Free(Must(pool->Allocate(3 * kMiB, captured.get())), captured.get())
          .ok());
  Graph graph(captured.get(), GetParam());
  const auto use = [&] {
    std::vector<CUdeviceptr> blocks;
    for (int i = 0; i < 6; ++i) {
      blocks.push_back(Must(pool->Allocate(2 * kMiB, stream.get())));
    }
    const CUdeviceptr one =
        Must(pool->Allocate(kMiB, another.get(), {.domain = second}));
    EXPECT_TRUE(pool->Free(one, stream.get()).ok());
    for (CUdeviceptr block : blocks) {
      EXPECT_TRUE(pool->Free(block, another.get()).ok());
    }
    EXPECT_TRUE(pool->Reserve(32 * kMiB, stream.get()).ok());
    EXPECT_TRUE(pool->ReleaseStream(another.get(), Soon()).ok());
    EXPECT_TRUE(pool->Trim().ok());
    const std::unique_ptr<Pool> made = MakePool();
    EXPECT_TRUE(made->Allocate(kMiB, stream.get()).ok());
  };
  OnAThread([&] { use(); }).get();
  use();
  // Of the captured stream nothing is known, so its memory stays.
  EXPECT_EQ(pool->statistics().reserved, 4 * kMiB);
  EXPECT_EQ(pool->statistics().pending, 3 * kMiB);
  graph.End();
  EXPECT_TRUE(pool->Trim().ok());
  EXPECT_EQ(pool->statistics().reserved, 0u);
  ExpectWhole(*pool);
}

// The legacy stream may not be used beside it, nor asked.
TEST_P(PoolCaptureTest, TheNullStreamIsLeftAloneBesideABlockingStream) {
  CUstream captured = nullptr;
  ASSERT_EQ(driver()->cuStreamCreate(&captured, CU_STREAM_DEFAULT),
            CUDA_SUCCESS);
  const Stream stream;
  const std::unique_ptr<Pool> pool = MakePool();
  const CUdeviceptr block = Must(pool->Allocate(3 * kMiB, nullptr));
  {
    Graph graph(captured, GetParam());
    EXPECT_TRUE(pool->Free(block, nullptr).ok());
    const CUdeviceptr next = Must(pool->Allocate(3 * kMiB, stream.get()));
    EXPECT_NE(next, block);
    EXPECT_TRUE(pool->Free(next, stream.get()).ok());
    EXPECT_TRUE(pool->Trim().ok());
    EXPECT_EQ(pool->statistics().reserved, 4 * kMiB);
    graph.End();
  }
  EXPECT_EQ(driver()->cuStreamDestroy(captured), CUDA_SUCCESS);
  EXPECT_TRUE(pool->Trim().ok());
  EXPECT_EQ(pool->statistics().reserved, 0u);
  ExpectWhole(*pool);
}

TEST_P(PoolCaptureTest, AtTheCapACapturedStreamIsNotMadeToWait) {
  const Stream captured;
  HeldStream held(device);
  const std::unique_ptr<Pool> pool = MakePool(4 * kMiB);
  const SharingDomain second = pool->NewDomain();
  const CUdeviceptr block = Must(pool->Allocate(4 * kMiB, held.get()));
  EXPECT_TRUE(pool->Free(block, held.get()).ok());
  Graph graph(captured.get(), GetParam());
  for (const SharingDomain domain : {SharingDomain::kFirst, second}) {
    const absl::Status refused =
        pool->Allocate(kMiB, captured.get(), {.domain = domain}).status();
    EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  }
  graph.End();
  const CUdeviceptr next = Must(pool->Allocate(kMiB, captured.get()));
  held.Release();
  EXPECT_TRUE(pool->Free(next, captured.get()).ok());
  captured.Sync();
  ExpectWhole(*pool);
}

TEST_P(PoolCaptureTest, WhatACapturedStreamFreedServesOthersAfterTheCapture) {
  const Stream captured;
  const Stream stream;
  const std::unique_ptr<Pool> pool = MakePool(4 * kMiB);
  const CUdeviceptr block = Must(pool->Allocate(4 * kMiB, captured.get()));
  EXPECT_TRUE(pool->Free(block, captured.get()).ok());
  Graph graph(captured.get(), GetParam());
  std::future<absl::StatusOr<CUdeviceptr>> waits =
      OnAThread([&] { return pool->Allocate(kMiB, stream.get()); });
  EXPECT_EQ(waits.wait_for(std::chrono::milliseconds(30)),
            std::future_status::timeout);
  graph.End();
  const CUdeviceptr next = Must(waits.get());
  EXPECT_TRUE(pool->Free(next, stream.get()).ok());
  ExpectWhole(*pool);
}

TEST_P(PoolCaptureTest, PeersBreakNoCapture) {
  const Stream captured;
  const Stream stream;
  const std::unique_ptr<Pool> pool = MakePool();
  const std::unique_ptr<Endpoint> endpoint = Must(Endpoint::Start({}));
  Graph graph(captured.get(), GetParam());
  {
    const Share served = Must(endpoint->Serve(*pool));
    const std::unique_ptr<ImportedPool> imported =
        Must(ImportedPool::Subscribe(driver(), served.ticket(), {}, Soon()));
    const CUdeviceptr first = Must(pool->Allocate(3 * kMiB, stream.get()));
    const CUdeviceptr second = Must(pool->Allocate(3 * kMiB, stream.get()));
    ImportedBlock block =
        Must(imported->Import(Must(pool->Export(first)), Soon()));
    const absl::Status refused =
        imported->ReleaseAfter(std::move(block), captured.get());
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_TRUE(imported->ReleaseAfter(std::move(block), stream.get()).ok());
    ImportedBlock last =
        Must(imported->Import(Must(pool->Export(second)), Soon()));
    EXPECT_TRUE(pool->Free(first, stream.get()).ok());
    EXPECT_TRUE(pool->Free(second, stream.get()).ok());
    EXPECT_TRUE(pool->WaitUntilReturned({}, Soon()).ok());
    { const ImportedBlock gone = std::move(last); }
    EXPECT_TRUE(pool->WaitUntilAllReturned(Soon()).ok());
    EXPECT_TRUE(pool->Trim().ok());
  }
  graph.End();
  ExpectWhole(*pool);
}

// Threads whose every call takes the slow path, and threads that capture,
// launch, and look whether anybody else wrote into what their graphs use.
TEST_P(PoolCaptureTest, ManyThreadsCaptureWhileOthersGrowAndTrim) {
  constexpr int kRounds = 40;
  const std::unique_ptr<Pool> pool = MakePool();
  std::atomic<bool> done = false;
  std::vector<std::future<void>> churn;
  for (int i = 0; i < 2; ++i) {
    churn.push_back(OnAThread([&] {
      const Stream stream;
      while (!done) {
        std::vector<CUdeviceptr> blocks;
        for (int j = 0; j < 4; ++j) {
          blocks.push_back(Must(pool->Allocate(2 * kMiB, stream.get())));
          EXPECT_EQ(driver()->cuMemsetD8Async(blocks.back(), 9, 2 * kMiB,
                                              stream.get()),
                    CUDA_SUCCESS);
        }
        for (CUdeviceptr block : blocks) {
          EXPECT_TRUE(pool->Free(block, stream.get()).ok());
        }
        EXPECT_TRUE(pool->Trim().ok());
      }
      EXPECT_TRUE(pool->ReleaseStream(stream.get(), Soon()).ok());
    }));
  }
  const std::vector<Stream> streams(2);
  std::vector<std::future<void>> capture;
  for (const Stream& stream : streams) {
    capture.push_back(OnAThread([&] {
      for (int round = 0; round < kRounds; ++round) {
        Graph graph(stream.get(), GetParam());
        const CUdeviceptr block = Must(pool->Allocate(kMiB, stream.get()));
        EXPECT_EQ(driver()->cuMemsetD8Async(block, 7, kMiB, stream.get()),
                  CUDA_SUCCESS);
        EXPECT_FALSE(pool->Free(block, stream.get()).ok());
        graph.End();
        graph.Launch(stream.get());
        graph.Launch(stream.get());
        std::uint8_t last = 0;
        EXPECT_EQ(driver()->cuMemcpyDtoHAsync(&last, block + kMiB - 1, 1,
                                              stream.get()),
                  CUDA_SUCCESS);
        {
          const RelaxedCapture relaxed(driver());
          stream.Sync();
        }
        EXPECT_EQ(last, 7);
        EXPECT_TRUE(pool->Free(block, stream.get()).ok());
        // So that nobody asks after it when the next capture begins.
        EXPECT_TRUE(pool->ReleaseStream(stream.get(), Soon()).ok());
      }
    }));
  }
  for (std::future<void>& one : capture) one.get();
  done = true;
  for (std::future<void>& one : churn) one.get();
  ExpectWhole(*pool);
}

TEST_P(PoolCaptureTest, NothingIsRetiredToACapturedStream) {
  const Stream stream;
  RetireQueue queue(driver());
  Allocation memory = Must(Allocation::Create(device, {.size = kGranule}));
  Graph graph(stream.get(), GetParam());
  const absl::Status refused = queue.Retire(std::move(memory), stream.get());
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  graph.End();
  EXPECT_TRUE(queue.Retire(std::move(memory), stream.get()).ok());
  EXPECT_TRUE(queue.Drain(Soon()).ok());
}

class FirstOfItsKind : public PoolCaptureTest {
 protected:
  // Of a driver of which nothing is remembered: each kind is tried at first.
  Device Fresh() {
    return Must(Device::ByOrdinal(FaultyDriver(driver(), &no_faults_), 0));
  }
  absl::StatusOr<Allocation> MakeOn(const Device& on) {
    return Allocation::Create(on, {.size = kGranule});
  }

 private:
  DriverFaults no_faults_;
};

INSTANTIATE_TEST_SUITE_P(Streams, FirstOfItsKind,
                         ::testing::Values(CU_STREAM_CAPTURE_MODE_GLOBAL,
                                           CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                                           CU_STREAM_CAPTURE_MODE_RELAXED));

TEST_P(FirstOfItsKind, AllocationIsMadeBesideACaptureAndLeavesItWhole) {
  for (const unsigned flags : {CU_STREAM_NON_BLOCKING, CU_STREAM_DEFAULT}) {
    const Stream stream(flags);
    const Device here = Fresh();
    const Device there = Fresh();
    Graph graph(stream.get(), GetParam());
    const absl::StatusOr<Allocation> mine = MakeOn(here);
    const absl::StatusOr<Allocation> others =
        OnAThread([&] { return MakeOn(there); }).get();
    graph.End();
    EXPECT_TRUE(mine.ok()) << flags << ": " << mine.status();
    EXPECT_TRUE(others.ok()) << flags << ": " << others.status();
    // Nothing is remembered that was refused.
    const absl::Status later = MakeOn(there).status();
    EXPECT_TRUE(later.ok()) << flags << ": " << later;
  }
}

TEST_P(FirstOfItsKind, PoolIsMadeBesideACaptureAndLeavesItWhole) {
  for (const unsigned flags : {CU_STREAM_NON_BLOCKING, CU_STREAM_DEFAULT}) {
    const Stream stream(flags);
    const Device fresh = Fresh();
    Graph graph(stream.get(), GetParam());
    const absl::StatusOr<std::unique_ptr<Pool>> pool =
        OnAThread([&] { return Pool::Create(fresh, {}); }).get();
    graph.End();
    EXPECT_TRUE(pool.ok()) << flags << ": " << pool.status();
  }
}

TEST_P(PoolCaptureTest, MemoryIsKeptOnTheHostBesideACapture) {
  for (const unsigned flags : {CU_STREAM_NON_BLOCKING, CU_STREAM_DEFAULT}) {
    const Stream stream(flags);
    const Allocation memory =
        Must(Allocation::Create(device, {.size = kGranule}));
    Fill(memory.address(), 5, memory.size());
    Graph graph(stream.get(), GetParam());
    const absl::Status copied = OnAThread([&]() -> absl::Status {
                                  absl::StatusOr<HostCopy> copy = HostCopy::Of(
                                      device, memory.address(), memory.size());
                                  if (!copy.ok()) return copy.status();
                                  return copy->WriteTo(memory.address());
                                }).get();
    graph.End();
    EXPECT_TRUE(copied.ok()) << flags << ": " << copied;
    EXPECT_TRUE(Holds(memory.address(), 5, memory.size()));
  }
}

TEST_P(PoolCaptureTest, ARegionIsReleasedAndRestoredBesideACapture) {
  for (const bool on_a_thread : {false, true}) {
    const Stream stream;
    RestorableRegion region(device);
    const CUdeviceptr kept = Must(region.Allocate(2 * kGranule));
    Fill(kept, 5, 2 * kGranule);
    const auto work = [&]() -> absl::Status {
      const absl::StatusOr<CUdeviceptr> freed = region.Allocate(kGranule);
      if (!freed.ok()) return freed.status();
      absl::Status done = region.Free(*freed);
      done.Update(region.Release(Keep::kHostMemory));
      done.Update(region.Restore());
      return done;
    };
    Graph graph(stream.get(), GetParam());
    const absl::Status done = on_a_thread ? OnAThread(work).get() : work();
    graph.End();
    EXPECT_TRUE(done.ok()) << on_a_thread << ": " << done;
    EXPECT_FALSE(region.statistics().is_released);
    EXPECT_TRUE(Holds(kept, 5, 2 * kGranule));
  }
}

TEST_P(PoolCaptureTest, SharedMemoryIsReleasedAndRestoredBesideACapture) {
  const std::unique_ptr<Endpoint> endpoint = Must(Endpoint::Start({}));
  for (const bool on_a_thread : {false, true}) {
    const Stream stream;
    RestorableAllocation memory = Must(RestorableAllocation::Share(
        *endpoint, Must(Allocation::Create(device, {.size = kGranule}))));
    const CUdeviceptr at = memory.memory().address();
    Fill(at, 6, kGranule);
    const auto work = [&] {
      absl::Status done = memory.Release(Keep::kHostMemory, Soon());
      done.Update(memory.Restore());
      return done;
    };
    Graph graph(stream.get(), GetParam());
    const absl::Status done = on_a_thread ? OnAThread(work).get() : work();
    graph.End();
    EXPECT_TRUE(done.ok()) << on_a_thread << ": " << done;
    EXPECT_FALSE(memory.is_released());
    EXPECT_TRUE(Holds(at, 6, kGranule));
  }
}

TEST_P(PoolCaptureTest, WhoeverLooksAtAnAddressBreaksNoCapture) {
  const absl::Status dma_buf = [&] {
    const Allocation memory =
        Must(Allocation::Create(device, {.size = kGranule}));
    return ExportDmaBufs(driver(), memory.address(), kGranule).status();
  }();
  for (const bool on_a_thread : {false, true}) {
    const Stream stream;
    const Allocation memory =
        Must(Allocation::Create(device, {.size = kGranule}));
    const auto work = [&] {
      absl::Status done = Classify(driver(), memory.address()).status();
      done.Update(
          AdoptedMemory::Adopt(driver(), memory.address(), kGranule).status());
      // What the driver has none of it says as without a capture.
      EXPECT_EQ(
          ExportDmaBufs(driver(), memory.address(), kGranule).status().code(),
          dma_buf.code());
      return done;
    };
    Graph graph(stream.get(), GetParam());
    const absl::Status done = on_a_thread ? OnAThread(work).get() : work();
    graph.End();
    EXPECT_TRUE(done.ok()) << on_a_thread << ": " << done;
  }  // The fixture sees that no reference is left.
}

TEST_P(PoolCaptureTest, AllocationsAndImportsChangeAndEndBesideACapture) {
  const auto work = [this](Allocation memory) -> absl::Status {
    const protocol::Outgoing out =
        Must(protocol::MakeOutgoing(memory.shareable()));
    std::vector<ExportedHandle> handles;
    handles.push_back(Must(out.handle(0)));
    absl::StatusOr<ImportedAllocation> imported =
        ImportedAllocation::Open(driver(), out.ticket, handles, {});
    if (!imported.ok()) return imported.status();
    absl::Status done = imported->Unmap();
    done.Update(imported->Remap());
    done.Update(memory.SetAccess({{Location::On(device), Access::kReadWrite}}));
    done.Update(memory.Unmap());
    done.Update(memory.Remap());
    done.Update(memory.Discard());
    done.Update(memory.Remap());
    return done;
  };  // And both end. The fixture sees what stays.
  for (const bool on_a_thread : {false, true}) {
    const Stream stream;
    Allocation memory = Must(Allocation::Create(device, {.size = kGranule}));
    Graph graph(stream.get(), GetParam());
    const absl::Status done =
        on_a_thread ? OnAThread([&] { return work(std::move(memory)); }).get()
                    : work(std::move(memory));
    graph.End();
    EXPECT_TRUE(done.ok()) << on_a_thread << ": " << done;
  }
}

// Of fences in device memory the host asks the driver, which looks at a stream.
TEST_P(PoolCaptureTest, WorkOnAFenceArrayBreaksNoCapture) {
  const Allocation memory =
      Must(Allocation::Create(device, {.size = kGranule}));
  const auto work = [&](FenceArray& array) -> absl::Status {
    absl::Status done = array.Clear(Soon());
    absl::StatusOr<Fence> fence = array.At(0);
    if (!fence.ok()) return fence.status();
    done.Update(fence->Query().status());
    done.Update(fence->SignalFromHost(1));
    done.Update(fence->WaitOnHost(1, Soon()));
    done.Update(fence->Abandon());
    return done;
  };
  for (const FenceMechanism mechanism :
       {FenceMechanism::kStreamMemoryOperations, FenceMechanism::kKernels}) {
    const auto make = [&] {
      return FenceArray::Over(device, memory.address(), kGranule, mechanism);
    };
    absl::StatusOr<std::unique_ptr<FenceArray>> before = make();
    if (absl::IsUnimplemented(before.status())) continue;
    Must(before.status());
    for (const bool on_a_thread : {false, true}) {
      const Stream stream;
      // Of an array that there was, and then of one that is made, and goes.
      const auto both = [&]() -> absl::Status {
        absl::Status done = work(**before);
        absl::StatusOr<std::unique_ptr<FenceArray>> made = make();
        done.Update(made.ok() ? work(**made) : made.status());
        return done;
      };
      Graph graph(stream.get(), GetParam());
      const absl::Status done = on_a_thread ? OnAThread(both).get() : both();
      graph.End();
      EXPECT_TRUE(done.ok()) << on_a_thread << ": " << done;
    }
  }
}

// A write that nobody has waited for: the end of the array waits for it.
TEST_P(PoolCaptureTest, AFenceArrayThatEndsBreaksNoCapture) {
  const Allocation memory =
      Must(Allocation::Create(device, {.size = kGranule}));
  DriverFaults faults;
  const Device where =
      Must(Device::ByOrdinal(FaultyDriver(driver(), &faults), 0));
  absl::StatusOr<std::unique_ptr<FenceArray>> array =
      FenceArray::Over(where, memory.address(), kGranule);
  if (absl::IsUnimplemented(array.status())) {
    GTEST_SKIP() << array.status();
  }
  Must(array.status());
  Must((*array)->Clear(Soon()));
  faults.Arm({.entry = "cuStreamQuery", .result = CUDA_ERROR_INVALID_HANDLE});
  EXPECT_FALSE(Must((*array)->At(0)).SignalFromHost(1).ok());
  EXPECT_EQ(faults.Disarm().fired, 1u);
  const Stream stream;
  Graph graph(stream.get(), GetParam());
  array->reset();
  graph.End();
}

}  // namespace
}  // namespace vmm::testing
