// Pool under programs with many streams: each test is a pattern of a real
// program, with a bound on what is reserved, and nothing refused that the
// driver's own pool would have served.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "tests/gpu/changed_driver.h"
#include "tests/gpu/held_stream.h"
#include "tests/gpu/stream.h"
#include "tests/gpu/vmm_driver_test.h"
#include "tests/support/driver_faults.h"
#include "vmm/pool/pool.h"

namespace vmm::testing {
namespace {

using platform::DriverTable;

absl::Time Soon() { return absl::Now() + absl::Seconds(20); }
constexpr absl::Duration kLittle = absl::Milliseconds(100);

// What may be reserved for so much that was live at a time.
std::uint64_t Bound(std::uint64_t peak) { return peak / 4 * 5 + 64 * kMiB; }

class PoolStreamsTest : public DriverTest {
 protected:
  void SetUp() override {
    if (!driver().Need<&DriverTable::cuStreamWaitValue64>().ok()) {
      GTEST_SKIP() << "this driver cannot hold a stream";
    }
  }
  // A GPU's driver keeps memory of its own for hundreds of streams, also when
  // they are gone (measured: 140 MB for 256), and these tests leave nothing.
  static std::size_t MostStreams() { return OnHostMemoryDriver() ? 512 : 16; }
  static void ExpectWhole(const Pool& pool) {
    const absl::Status whole = pool.CheckInvariants();
    EXPECT_TRUE(whole.ok()) << whole;
    EXPECT_TRUE(pool.statistics().last_error.ok())
        << pool.statistics().last_error;
  }

  // Random blocks on all streams, at most `most_live` bytes at a time. The
  // largest sum, and how many were refused.
  struct Outcome {
    std::uint64_t peak = 0;
    int refused = 0;
  };
  static Outcome Churn(Pool& pool, const std::vector<Stream>& streams,
                       int operations, std::uint64_t least, std::uint64_t most,
                       std::uint64_t most_live) {
    struct One {
      CUdeviceptr block;
      std::uint64_t size;
      CUstream stream;
    };
    std::mt19937_64 random(4);
    std::vector<One> live;
    std::uint64_t bytes = 0;
    Outcome outcome;
    for (int i = 0; i < operations; ++i) {
      const std::uint64_t size = least + random() % (most - least);
      while (bytes + size > most_live || (!live.empty() && random() % 3 == 0)) {
        std::swap(live[random() % live.size()], live.back());
        EXPECT_TRUE(pool.Free(live.back().block, live.back().stream).ok());
        bytes -= live.back().size;
        live.pop_back();
      }
      CUstream stream = streams[random() % streams.size()].get();
      const absl::StatusOr<CUdeviceptr> block = pool.Allocate(size, stream);
      if (!block.ok()) {
        if (outcome.refused++ == 0) ADD_FAILURE() << block.status();
        continue;
      }
      live.push_back({*block, size, stream});
      bytes += size;
      outcome.peak = std::max(outcome.peak, bytes);
    }
    for (const One& one : live) {
      EXPECT_TRUE(pool.Free(one.block, one.stream).ok());
    }
    return outcome;
  }
};

TEST_F(PoolStreamsTest, ReservesLittleMoreThanIsLiveWithAnyNumberOfStreams) {
  for (const std::size_t count : {1, 4, 16, 64, 256}) {
    if (count > MostStreams()) break;
    const std::vector<Stream> streams(count);
    const std::unique_ptr<Pool> pool = Must(Pool::Create(device, {}));
    const Outcome outcome =
        Churn(*pool, streams, 20'000, 4096, kMiB, 300 * kMiB);
    EXPECT_EQ(outcome.refused, 0);
    EXPECT_LE(pool->statistics().reserved, Bound(outcome.peak))
        << count << " streams, peak " << outcome.peak;
    ExpectWhole(*pool);
  }
}

TEST_F(PoolStreamsTest, OneBlockAtATimeOnStreamAfterStreamNeedsOneSegment) {
  const std::vector<Stream> streams(MostStreams());
  const std::unique_ptr<Pool> pool = Must(Pool::Create(device, {}));
  for (int round = 0; round < 5; ++round) {
    for (const Stream& stream : streams) {
      const CUdeviceptr block = Must(pool->Allocate(kMiB, stream.get()));
      EXPECT_TRUE(pool->Free(block, stream.get()).ok());
    }
  }
  EXPECT_LE(pool->statistics().reserved, Bound(kMiB));
  ExpectWhole(*pool);
}

TEST_F(PoolStreamsTest, AtTheCapNothingIsRefusedWhileFreedMemoryCanServe) {
  for (const std::size_t count : {8, 32}) {
    const std::vector<Stream> streams(count);
    const std::unique_ptr<Pool> pool =
        Must(Pool::Create(device, {.cap = 512 * kMiB}));
    const Outcome outcome =
        Churn(*pool, streams, 5'000, 256 << 10, 16 * kMiB, 128 * kMiB);
    EXPECT_EQ(outcome.refused, 0) << count << " streams";
    ExpectWhole(*pool);
  }
}

// The GPU stands still on all of them: what was freed on one serves another by
// a wait on the GPU.
TEST_F(PoolStreamsTest, AtTheCapStreamsThatStandStillServeEachOther) {
  HeldStream one(device);
  HeldStream two(device);
  Stream third;
  const std::unique_ptr<Pool> pool =
      Must(Pool::Create(device, {.first_segment_size = 16 * kMiB,
                                 .max_segment_size = 16 * kMiB,
                                 .cap = 16 * kMiB}));
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 16; ++i) {
    blocks.push_back(
        Must(pool->Allocate(kMiB, i % 2 == 0 ? one.get() : two.get())));
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    EXPECT_TRUE(pool->Free(blocks[i], i % 2 == 0 ? one.get() : two.get()).ok());
  }
  // No piece of one stream alone is as large.
  const absl::StatusOr<CUdeviceptr> whole =
      pool->Allocate(15 * kMiB, third.get());
  EXPECT_TRUE(whole.ok()) << whole.status();
  EXPECT_FALSE(third.IsIdle()) << "it must wait for both";
  one.Release();
  EXPECT_FALSE(third.IsIdle());
  two.Release();
  third.Sync();
  EXPECT_TRUE(pool->Free(*whole, third.get()).ok());
  ExpectWhole(*pool);
}

// By the legacy stream it means that of the pool's context.
TEST_F(PoolStreamsTest, AtTheCapAThreadWithoutAContextIsServedByAWaitToo) {
  HeldStream held(device);
  const std::unique_ptr<Pool> pool =
      Must(Pool::Create(device, {.first_segment_size = 4 * kMiB,
                                 .max_segment_size = 4 * kMiB,
                                 .cap = 4 * kMiB}));
  const CUdeviceptr block = Must(pool->Allocate(4 * kMiB, held.get()));
  EXPECT_TRUE(pool->Free(block, held.get()).ok());
  absl::StatusOr<CUdeviceptr> served;
  std::thread([&] {
    served = pool->Allocate(4 * kMiB, CU_STREAM_LEGACY);
  }).join();
  EXPECT_TRUE(served.ok()) << served.status();
  EXPECT_EQ(driver()->cuStreamQuery(CU_STREAM_LEGACY), CUDA_ERROR_NOT_READY)
      << "it must wait for the other";
  held.Release();
  EXPECT_EQ(driver()->cuStreamSynchronize(CU_STREAM_LEGACY), CUDA_SUCCESS);
  if (served.ok()) {
    EXPECT_EQ(*served, block);
    EXPECT_TRUE(pool->Free(*served, CU_STREAM_LEGACY).ok());
  }
  EXPECT_EQ(pool->CheckInvariants(), absl::OkStatus());
}

TEST_F(PoolStreamsTest, WhatIsAllocatedOnOneAndFreedOnAnotherIsUsedAgain) {
  const Stream producer;
  const Stream consumer;
  {
    const std::unique_ptr<Pool> pool = Must(Pool::Create(device, {}));
    for (int i = 0; i < 2000; ++i) {
      const CUdeviceptr block = Must(pool->Allocate(kMiB, producer.get()));
      EXPECT_TRUE(pool->Free(block, consumer.get()).ok());
    }
    EXPECT_LE(pool->statistics().reserved, Bound(kMiB));
    // Also by who freed it.
    const std::uint64_t reserved = pool->statistics().reserved;
    EXPECT_TRUE(pool->Allocate(16 * kMiB, consumer.get()).ok());
    EXPECT_EQ(pool->statistics().reserved, reserved);
    ExpectWhole(*pool);
  }
  constexpr std::uint64_t kFrame = 12'000'000;
  const std::unique_ptr<Pool> pool =
      Must(Pool::Create(device, {.cap = 256 * kMiB}));
  std::vector<CUdeviceptr> frames;
  for (int i = 0; i < 3000; ++i) {
    frames.push_back(Must(pool->Allocate(kFrame, producer.get())));
    if (frames.size() < 8) continue;
    EXPECT_TRUE(pool->Free(frames.front(), consumer.get()).ok());
    frames.erase(frames.begin());
  }
  EXPECT_LE(pool->statistics().reserved, Bound(8 * kFrame));
  for (CUdeviceptr frame : frames) {
    EXPECT_TRUE(pool->Free(frame, consumer.get()).ok());
  }
  consumer.Sync();
  Must(pool->Trim());
  EXPECT_EQ(pool->statistics().reserved, 0u) << "at the first Trim()";
}

// Numba and CuPy use memory on streams of which the pool learns nothing.
TEST_F(PoolStreamsTest, WhatIsFreedOfAllStreamsIsAllocatedAfterThem) {
  const std::unique_ptr<Pool> pool = Must(
      Pool::Create(device, {.first_segment_size = 2 * kMiB, .cap = 2 * kMiB}));
  HeldStream user(device, CU_STREAM_DEFAULT);
  const CUdeviceptr block = Must(pool->Allocate(2 * kMiB, AllStreams()));
  ASSERT_EQ(driver()->cuMemsetD8Async(block, 1, 2 * kMiB, user.get()),
            CUDA_SUCCESS);
  EXPECT_EQ(pool->Free(block + 256, AllStreams()).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(pool->Free(block, AllStreams()), absl::OkStatus());
  EXPECT_EQ(pool->Free(block, AllStreams()).code(),
            absl::StatusCode::kFailedPrecondition);
  CUcontext context = nullptr;
  ASSERT_EQ(driver()->cuCtxGetCurrent(&context), CUDA_SUCCESS);
  std::future<CUdeviceptr> again = std::async(std::launch::async, [&] {
    EXPECT_EQ(driver()->cuCtxSetCurrent(context), CUDA_SUCCESS);
    return Must(pool->Allocate(2 * kMiB, AllStreams()));
  });
  EXPECT_EQ(again.wait_for(std::chrono::milliseconds(100)),
            std::future_status::timeout);
  user.Release();
  EXPECT_EQ(again.get(), block);
  const Stream next;  // In no order with the others.
  ASSERT_EQ(driver()->cuMemsetD8Async(block, 2, 2 * kMiB, next.get()),
            CUDA_SUCCESS);
  next.Sync();
  EXPECT_TRUE(Holds(block, 2, 2 * kMiB));
  EXPECT_EQ(pool->Free(block, next.get()), absl::OkStatus());
  ExpectWhole(*pool);
}

TEST_F(PoolStreamsTest, WhoKnowsOfNoStreamGetsWhatTheGpuIsDoneWith) {
  const std::unique_ptr<Pool> pool = Must(Pool::Create(device, {}));
  HeldStream held(device);
  const CUdeviceptr of_stream = Must(pool->Allocate(4096, held.get()));
  const CUdeviceptr of_legacy = Must(pool->Allocate(4096, CU_STREAM_LEGACY));
  const CUdeviceptr of_all = Must(pool->Allocate(4096, AllStreams()));
  HeldStream blocking(device, CU_STREAM_DEFAULT);
  EXPECT_TRUE(pool->Free(of_stream, held.get()).ok());
  EXPECT_TRUE(pool->Free(of_legacy, CU_STREAM_LEGACY).ok());
  EXPECT_TRUE(pool->Free(of_all, AllStreams()).ok());
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 8; ++i) {
    blocks.push_back(Must(pool->Allocate(4096, AllStreams())));
    EXPECT_NE(blocks.back(), of_stream);
    EXPECT_NE(blocks.back(), of_legacy);
    EXPECT_NE(blocks.back(), of_all);
  }
  for (const CUdeviceptr block : blocks) {
    EXPECT_TRUE(pool->Free(block, AllStreams()).ok());
  }
  for (const absl::Status& refused :
       {pool->ReleaseStream(AllStreams(), Soon()),
        pool->Reserve(kMiB, AllStreams()),
        pool->Order(AllStreams(), nullptr, Soon()),
        pool->Order(nullptr, AllStreams(), Soon())}) {
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  }
  ExpectWhole(*pool);
}

// `then` has done nothing that was put on it since until `first` is let go.
void ExpectComesAfter(Pool& pool, HeldStream& first, CUstream named_first,
                      CUstream then) {
  EXPECT_EQ(pool.Order(named_first, then, absl::InfinitePast()),
            absl::OkStatus());
  EXPECT_EQ(TestDriver()->cuStreamQuery(then), CUDA_ERROR_NOT_READY);
  std::this_thread::sleep_for(absl::ToChronoMilliseconds(kLittle));
  EXPECT_EQ(TestDriver()->cuStreamQuery(then), CUDA_ERROR_NOT_READY);
  first.Release();
  EXPECT_EQ(TestDriver()->cuStreamSynchronize(then), CUDA_SUCCESS);
}

TEST_F(PoolStreamsTest, AStreamIsPutBehindAnother) {
  const std::unique_ptr<Pool> pool = Must(Pool::Create(device, {}));
  const Stream then;
  {
    HeldStream first(device);
    ExpectComesAfter(*pool, first, first.get(), then.get());
  }
  {
    HeldStream first(device);
    ExpectComesAfter(*pool, first, first.get(), CU_STREAM_LEGACY);
  }
  // The legacy stream comes after one that synchronises with it.
  HeldStream first(device, CU_STREAM_DEFAULT);
  ExpectComesAfter(*pool, first, nullptr, then.get());
  ExpectWhole(*pool);
}

// A thread without a context means the default stream of the pool's.
TEST_F(PoolStreamsTest, AStreamIsPutBehindTheDefaultOneWithoutAContext) {
  const std::unique_ptr<Pool> pool = Must(Pool::Create(device, {}));
  const Stream then;
  HeldStream first(device, CU_STREAM_DEFAULT);
  const absl::Status ordered =
      std::async(std::launch::async, [&] {
        return pool->Order(CU_STREAM_LEGACY, then.get(), absl::InfinitePast());
      }).get();
  EXPECT_EQ(ordered, absl::OkStatus());
  EXPECT_EQ(driver()->cuStreamQuery(then.get()), CUDA_ERROR_NOT_READY);
  first.Release();
  EXPECT_EQ(driver()->cuStreamSynchronize(then.get()), CUDA_SUCCESS);
}

TEST_F(PoolStreamsTest, ALargeSegmentIsNotCutUpForASmallBlock) {
  const std::unique_ptr<Pool> pool = Must(Pool::Create(device, {}));
  constexpr std::uint64_t kLarge = 1 << 30;
  std::vector<CUdeviceptr> kept;
  for (int i = 0; i < 10; ++i) {
    const CUdeviceptr large = Must(pool->Allocate(kLarge, nullptr));
    EXPECT_TRUE(pool->Free(large, nullptr).ok());
    kept.push_back(Must(pool->Allocate(10 * kMiB, nullptr)));
  }
  EXPECT_LE(pool->statistics().reserved, Bound(kLarge + 90 * kMiB));
  for (CUdeviceptr block : kept) EXPECT_TRUE(pool->Free(block, nullptr).ok());
  ExpectWhole(*pool);
}

TEST_F(PoolStreamsTest, TemporariesThatGrowDoNotAddUp) {
  const std::unique_ptr<Pool> pool = Must(Pool::Create(device, {}));
  std::uint64_t size = 40 * kMiB;
  for (; size < 1000 * kMiB; size = size / 10 * 11) {
    const CUdeviceptr block = Must(pool->Allocate(size, nullptr));
    EXPECT_TRUE(pool->Free(block, nullptr).ok());
    EXPECT_LE(pool->statistics().reserved, Bound(size));
  }
  ExpectWhole(*pool);
}

TEST_F(PoolStreamsTest, BlocksWithLargeAlignmentsShareSegments) {
  const std::unique_ptr<Pool> pool = Must(Pool::Create(device, {}));
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 16; ++i) {
    blocks.push_back(
        Must(pool->Allocate(4096, nullptr, {.alignment = 4 * kMiB})));
    EXPECT_EQ(blocks.back() % (4 * kMiB), 0u);
  }
  EXPECT_LE(pool->statistics().reserved, 96 * kMiB);
  for (CUdeviceptr block : blocks) EXPECT_TRUE(pool->Free(block, nullptr).ok());
  ExpectWhole(*pool);
}

TEST_F(PoolStreamsTest, AStreamThatStandsStillIsAskedAFewTimes) {
  DriverFaults faults;
  const platform::Driver counted = FaultyDriver(driver(), &faults);
  const Device its = Must(Device::ByOrdinal(counted, 0));
  const Stream home;
  HeldStream held(device);
  const std::unique_ptr<Pool> pool = Must(Pool::Create(its, {}));
  faults.ResetCounts();
  constexpr int kPairs = 1000;
  for (int i = 0; i < kPairs; ++i) {
    const CUdeviceptr block = Must(pool->Allocate(kMiB, home.get()));
    EXPECT_TRUE(pool->Free(block, held.get()).ok());
  }
  const auto calls = faults.CallsByEntry();
  std::uint64_t asked = 0;
  for (const char* entry : {"cuStreamQuery", "cuEventQuery"}) {
    const auto found = calls.find(entry);
    if (found != calls.end()) asked += found->second;
  }
  EXPECT_LE(asked, 2u * kPairs);
  held.Release();
  EXPECT_TRUE(pool->ReleaseStream(held.get(), Soon()).ok());
  ExpectWhole(*pool);
}

TEST_F(PoolStreamsTest, WhatOnePoolKeepsIdleServesAnotherOfTheProcess) {
  const std::unique_ptr<Pool> first = Must(Pool::Create(device, {}));
  const std::unique_ptr<Pool> second = Must(Pool::Create(device, {}));
  std::size_t free = 0;
  std::size_t total = 0;
  ASSERT_EQ(driver()->cuMemGetInfo(&free, &total), CUDA_SUCCESS);
  const std::uint64_t most = free / 4 * 3;
  EXPECT_TRUE(first->Free(Must(first->Allocate(most, nullptr)), nullptr).ok());
  EXPECT_GE(first->statistics().reserved, most);
  const absl::StatusOr<CUdeviceptr> block = second->Allocate(most, nullptr);
  EXPECT_TRUE(block.ok()) << block.status();
  EXPECT_EQ(first->statistics().reserved, 0u);
}

// A stream that the program has released, and whether a driver was asked after
// it since.
std::atomic<CUstream> released = nullptr;
std::atomic<bool> is_asked_after = false;

// What a thread has freed is found by ReleaseStream() wherever it is: also where
// a later Free() of that thread, on another stream, is moving it from the
// thread's cache while others keep the pool busy.
TEST_F(PoolStreamsTest, NobodyAsksAfterAReleasedStreamWhateverThreadsFree) {
  DriverTable table = TestDriver().table();
  table.cuStreamQuery = [](CUstream stream) {
    if (stream == released) is_asked_after = true;
    return TestDriver()->cuStreamQuery(stream);
  };
  const std::unique_ptr<Pool> pool =
      Must(Pool::Create(Must(Device::ByOrdinal(ChangedDriver(table), 0)), {}));
  CUcontext context = nullptr;
  ASSERT_EQ(driver()->cuCtxGetCurrent(&context), CUDA_SUCCESS);
  const Stream home;
  std::atomic<bool> is_over = false;
  std::vector<std::thread> others(2);
  for (std::thread& other : others) {
    other = std::thread([&] {
      while (!is_over) pool->statistics();
    });
  }
  // Most runs find it in the first few rounds, if it can be found.
  const absl::Time end = absl::Now() + absl::Seconds(3);
  for (int round = 0; round < 100 && !is_asked_after && absl::Now() < end;
       ++round) {
    const Stream stream;
    std::promise<void> freed;
    std::thread frees([&] {
      EXPECT_EQ(driver()->cuCtxSetCurrent(context), CUDA_SUCCESS);
      const auto allocate = [&](int count, std::uint64_t least, CUstream on) {
        std::vector<CUdeviceptr> blocks;
        for (int i = 0; i < count; ++i) {
          blocks.push_back(Must(pool->Allocate(256 * (least + i), on)));
        }
        return blocks;
      };
      // So many sizes that the one's drive the other's out of the cache.
      const std::vector<CUdeviceptr> theirs = allocate(400, 1, home.get());
      for (CUdeviceptr block : allocate(24, 500, stream.get())) {
        EXPECT_TRUE(pool->Free(block, stream.get()).ok());
      }
      freed.set_value();
      for (CUdeviceptr block : theirs) {
        EXPECT_TRUE(pool->Free(block, home.get()).ok());
      }
    });
    freed.get_future().wait();
    EXPECT_TRUE(pool->ReleaseStream(stream.get(), Soon()).ok());
    released = stream.get();
    frees.join();
    Must(pool->Trim(64 * kMiB));  // Asks after all that something waits for.
    released = nullptr;
    EXPECT_FALSE(is_asked_after) << "in round " << round;
  }
  is_over = true;
  for (std::thread& other : others) other.join();
  ExpectWhole(*pool);
}

// What a driver is to do before it answers how far a stream is.
std::function<void(CUstream)>& AtStreamQuery() {
  static std::function<void(CUstream)> call;
  return call;
}

// One thread's questions are asked in turn, and one stream's answer may take
// long. Who wants to let go of another has a deadline.
TEST_F(PoolStreamsTest, AStreamIsReleasedInTimeOrNotWhileOthersAreAskedFor) {
  DriverTable table = TestDriver().table();
  table.cuStreamQuery = [](CUstream stream) {
    AtStreamQuery()(stream);
    return TestDriver()->cuStreamQuery(stream);
  };
  const Stream slow;
  const Stream stream;
  std::promise<void> asks;
  std::promise<void> answers;
  std::shared_future<void> answered = answers.get_future().share();
  std::atomic<bool> is_asked = false;
  AtStreamQuery() = [&](CUstream of) {
    if (of != slow.get() || is_asked.exchange(true)) return;
    asks.set_value();
    answered.wait();
  };
  const std::unique_ptr<Pool> pool =
      Must(Pool::Create(Must(Device::ByOrdinal(ChangedDriver(table), 0)), {}));
  for (CUstream on : {slow.get(), stream.get()}) {
    EXPECT_TRUE(pool->Free(Must(pool->Allocate(kMiB, on)), on).ok());
  }
  CUcontext context = nullptr;
  ASSERT_EQ(driver()->cuCtxGetCurrent(&context), CUDA_SUCCESS);
  std::future<void> trims = std::async(std::launch::async, [&] {
    EXPECT_EQ(driver()->cuCtxSetCurrent(context), CUDA_SUCCESS);
    Must(pool->Trim());
  });
  asks.get_future().wait();
  std::future<absl::Status> releases = std::async(std::launch::async, [&] {
    EXPECT_EQ(driver()->cuCtxSetCurrent(context), CUDA_SUCCESS);
    return pool->ReleaseStream(stream.get(), Deadline::In(kLittle));
  });
  const bool in_time =
      releases.wait_for(std::chrono::seconds(20)) == std::future_status::ready;
  answers.set_value();
  EXPECT_TRUE(in_time);
  EXPECT_EQ(releases.get().code(), absl::StatusCode::kDeadlineExceeded);
  trims.get();
  EXPECT_EQ(pool->ReleaseStream(stream.get(), Soon()), absl::OkStatus());
  EXPECT_EQ(pool->statistics().pending, 0u);
  AtStreamQuery() = [](CUstream) {};
  ExpectWhole(*pool);
}

// One thread's request waits for the GPU; nobody else does.
// What a driver is to do.
struct Next {
  std::atomic<bool> is_full = false;
  std::atomic<bool> is_full_until_unmap = false;  // Has ended; once.
  std::function<void()> at_unmap;                 // Once.
};
Next& Todo() {
  static Next next;
  return next;
}
// The first device of a driver that does it.
Device DeviceOfTodo() {
  DriverTable table = TestDriver().table();
  table.cuMemCreate = [](CUmemGenericAllocationHandle* handle, std::size_t size,
                         const CUmemAllocationProp* props,
                         unsigned long long flags) {
    if (Todo().is_full) return CUDA_ERROR_OUT_OF_MEMORY;
    return TestDriver()->cuMemCreate(handle, size, props, flags);
  };
  table.cuMemUnmap = [](CUdeviceptr at, std::size_t size) {
    if (const auto call = std::exchange(Todo().at_unmap, nullptr)) call();
    const CUresult r = TestDriver()->cuMemUnmap(at, size);
    if (Todo().is_full_until_unmap.exchange(false)) Todo().is_full = false;
    return r;
  };
  return Must(Device::ByOrdinal(ChangedDriver(table), 0));
}

// Once its ranges went under the other one's hands.
TEST_F(PoolStreamsTest, APoolEndsWhenAnotherHasTakenWhatItKeptIdle) {
  const Device its = DeviceOfTodo();
  std::unique_ptr<Pool> first = Must(Pool::Create(its, {}));
  const std::unique_ptr<Pool> second = Must(Pool::Create(its, {}));
  EXPECT_TRUE(first->Free(Must(first->Allocate(kMiB, nullptr)), nullptr).ok());
  // The second finds the device full, and the first gives back what it has.
  std::future<void> ends;
  std::future_status ended = std::future_status::ready;
  Todo().is_full = true;
  Todo().at_unmap = [&] {
    Todo().is_full = false;
    ends = std::async(std::launch::async, [&] { first.reset(); });
    ended = ends.wait_for(std::chrono::milliseconds(200));
  };
  const CUdeviceptr block = Must(second->Allocate(kMiB, nullptr));
  EXPECT_TRUE(second->Free(block, nullptr).ok());
  ASSERT_TRUE(ends.valid());
  ends.get();
  EXPECT_EQ(ended, std::future_status::timeout) << "under the other's hands";
}

// Two pools of DeviceOfTodo(), of which the first keeps 4 MiB idle.
std::pair<std::unique_ptr<Pool>, std::unique_ptr<Pool>> OneIdleAndAnother() {
  const Device its = DeviceOfTodo();
  const PoolOptions small = {.first_segment_size = 4 * kMiB,
                             .max_segment_size = 4 * kMiB};
  std::unique_ptr<Pool> first = Must(Pool::Create(its, small));
  const CUdeviceptr block = Must(first->Allocate(4 * kMiB, nullptr));
  EXPECT_TRUE(first->Free(block, nullptr).ok());
  return {std::move(first), Must(Pool::Create(its, small))};
}

// Has another thread begin to allocate 4 MiB of `pool` when somebody unmaps: it
// ends only after that, unless it is refused.
void AllocateAtUnmap(Pool& pool, const BlockOptions& options,
                     std::future<absl::Status>& served) {
  Todo().at_unmap = [&pool, options, &served] {
    CUcontext context = nullptr;
    EXPECT_EQ(TestDriver()->cuCtxGetCurrent(&context), CUDA_SUCCESS);
    const auto begins = std::make_shared<std::promise<void>>();
    served = std::async(std::launch::async, [&pool, options, context, begins] {
      EXPECT_EQ(TestDriver()->cuCtxSetCurrent(context), CUDA_SUCCESS);
      begins->set_value();
      return pool.Allocate(4 * kMiB, nullptr, options).status();
    });
    begins->get_future().wait();
    served.wait_for(std::chrono::milliseconds(200));
  };
}

// No other pool's memory helps at the cap of this one.
TEST_F(PoolStreamsTest, AtItsCapAPoolTakesNothingFromAnother) {
  const auto [first, second] = OneIdleAndAnother();
  const std::unique_ptr<Pool> capped =
      Must(Pool::Create(first->device(), {.first_segment_size = 4 * kMiB,
                                          .max_segment_size = 4 * kMiB,
                                          .cap = 8 * kMiB}));
  EXPECT_TRUE(
      absl::IsResourceExhausted(capped->Allocate(16 * kMiB, nullptr).status()));
  const CUdeviceptr block = Must(capped->Allocate(8 * kMiB, nullptr));
  EXPECT_TRUE(absl::IsResourceExhausted(capped->Reserve(4 * kMiB, nullptr)));
  EXPECT_EQ(first->statistics().reserved, 4 * kMiB);
  EXPECT_TRUE(capped->Free(block, nullptr).ok());
  // What is idle in a domain makes room at the cap, and then the device is full.
  const SharingDomain another = capped->NewDomain();
  Todo().is_full = true;
  Todo().at_unmap = [] {  // Its own first, and then the other pool's.
    Todo().at_unmap = [] { Todo().is_full = false; };
  };
  const absl::StatusOr<CUdeviceptr> served =
      capped->Allocate(4 * kMiB, nullptr, {.domain = another});
  Todo().is_full = false;
  Todo().at_unmap = nullptr;
  EXPECT_TRUE(served.ok()) << served.status();
  EXPECT_EQ(first->statistics().reserved, 0u);
}

TEST_F(PoolStreamsTest, WhatAnotherPoolKeepsIdleMakesRoomForAReserve) {
  const auto [first, second] = OneIdleAndAnother();
  Todo().is_full = true;
  Todo().is_full_until_unmap = true;
  EXPECT_EQ(second->Reserve(4 * kMiB, nullptr), absl::OkStatus());
  EXPECT_FALSE(Todo().is_full);
  Todo().is_full = false;
  Todo().is_full_until_unmap = false;
  EXPECT_EQ(first->statistics().reserved, 0u);
  ExpectWhole(*first);
  ExpectWhole(*second);
}

// A device is full until what one thread gives back is unmapped. Who needs it in
// another pool waits.
TEST_F(PoolStreamsTest, WhatAnotherPoolIsGivingBackServesThisOne) {
  const auto [first, second] = OneIdleAndAnother();
  std::future<absl::Status> served;
  Todo().is_full = true;
  Todo().is_full_until_unmap = true;
  AllocateAtUnmap(*second, {}, served);
  EXPECT_EQ(Must(first->Trim()), 4 * kMiB);
  ASSERT_TRUE(served.valid());
  EXPECT_EQ(served.get(), absl::OkStatus());
  EXPECT_FALSE(Todo().is_full);
  ExpectWhole(*first);
  ExpectWhole(*second);
}

// What Trim() gives back counts until it is unmapped. Who needs it waits.
TEST_F(PoolStreamsTest, AtTheCapWhatIsBeingTrimmedServesAnotherDomain) {
  const std::unique_ptr<Pool> pool =
      Must(Pool::Create(DeviceOfTodo(), {.first_segment_size = 4 * kMiB,
                                         .max_segment_size = 4 * kMiB,
                                         .cap = 4 * kMiB}));
  const SharingDomain other = pool->NewDomain();
  const CUdeviceptr block = Must(pool->Allocate(4 * kMiB, nullptr));
  EXPECT_TRUE(pool->Free(block, nullptr).ok());
  std::future<absl::Status> served;
  AllocateAtUnmap(*pool, {.domain = other}, served);
  EXPECT_EQ(Must(pool->Trim()), 4 * kMiB);
  ASSERT_TRUE(served.valid());
  EXPECT_EQ(served.get(), absl::OkStatus());
  EXPECT_EQ(pool->statistics().reserved, 4 * kMiB);
  ExpectWhole(*pool);
}

TEST_F(PoolStreamsTest, NobodyWaitsBehindARequestThatWaitsForTheGpu) {
  DriverFaults calls;
  const Device counted =
      Must(Device::ByOrdinal(FaultyDriver(TestDriver(), &calls), 0));
  HeldStream held(device);
  const std::unique_ptr<Pool> pool =
      Must(Pool::Create(counted, {.first_segment_size = 4 * kMiB,
                                  .max_segment_size = 4 * kMiB,
                                  .cap = 8 * kMiB}));
  const SharingDomain other = pool->NewDomain();
  const CUdeviceptr mine = Must(pool->Allocate(kMiB, nullptr));
  // All that the cap leaves, freed on a stream that stands still.
  const CUdeviceptr busy = Must(pool->Allocate(4 * kMiB, held.get()));
  EXPECT_TRUE(pool->Free(busy, held.get()).ok());
  CUcontext context = nullptr;
  ASSERT_EQ(driver()->cuCtxGetCurrent(&context), CUDA_SUCCESS);
  calls.ResetCounts();
  std::future<absl::Status> waits = std::async(std::launch::async, [&] {
    EXPECT_EQ(driver()->cuCtxSetCurrent(context), CUDA_SUCCESS);
    // No stream may wait for memory that goes to another domain: this thread does.
    return pool->Allocate(4 * kMiB, nullptr, {.domain = other}).status();
  });
  // It waits once it asks again and again.
  const absl::Time late = Soon();
  while (calls.CallsByEntry()["cuEventQuery"] < 5 && absl::Now() < late) {
    std::this_thread::yield();
  }
  const absl::Time start = absl::Now();
  EXPECT_TRUE(pool->Export(mine).ok());
  EXPECT_TRUE(pool->Free(Must(pool->Allocate(65536, nullptr)), nullptr).ok());
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
  EXPECT_EQ(waits.wait_for(std::chrono::seconds(0)),
            std::future_status::timeout);
  held.Release();
  const absl::Status served = waits.get();
  EXPECT_TRUE(served.ok()) << served;
  ExpectWhole(*pool);
}

}  // namespace
}  // namespace vmm::testing
