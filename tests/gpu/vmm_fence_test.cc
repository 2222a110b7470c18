// Fences in one process: between streams, and between the GPU and the host.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "tests/gpu/held_stream.h"
#include "tests/gpu/stream.h"
#include "tests/gpu/vmm_driver_test.h"
#include "tests/support/driver_faults.h"
#include "vmm/memory/allocation.h"
#include "vmm/sync/fence.h"
#include "vmm/sync/fence_array.h"
#include "vmm/sync/fence_pool.h"

namespace vmm::testing {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kMoment = absl::Milliseconds(20);

class StreamsTest : public DriverTest {
 protected:
  StreamsTest() {
    for (CUstream& stream : streams_) {
      EXPECT_EQ(driver()->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING),
                CUDA_SUCCESS);
    }
  }
  ~StreamsTest() override {
    for (CUstream stream : streams_) {
      Sync(stream);
      EXPECT_EQ(driver()->cuStreamDestroy(stream), CUDA_SUCCESS);
    }
  }

  void Sync(CUstream stream) {
    EXPECT_EQ(driver()->cuStreamSynchronize(stream), CUDA_SUCCESS);
  }
  bool IsIdle(CUstream stream) {
    const CUresult result = driver()->cuStreamQuery(stream);
    EXPECT_TRUE(result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY);
    return result == CUDA_SUCCESS;
  }
  static void ExpectOk(const absl::Status& status) {
    EXPECT_TRUE(status.ok()) << status;
  }
  static void ExpectFails(absl::StatusCode code, const absl::Status& status,
                          const char* words) {
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(words));
  }

  CUstream streams_[2] = {};
};

struct Kind {
  const char* name;
  FencePlace place;
  FenceMechanism mechanism;
};

// Found by GoogleTest.
void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

// What holds for every fence, wherever its value lives and whatever waits for it.
class FenceTest : public StreamsTest,
                  public ::testing::WithParamInterface<Kind> {
 protected:
  FenceTest() {
    if (GetParam().place == FencePlace::kHostMemory) {
      pool_ = Must(FencePool::Create(device));
    } else {
      memory_.emplace(Must(Allocation::Create(device, {.size = kGranule})));
      array_ = Must(FenceArray::Over(device, memory_->address(),
                                     memory_->size(), GetParam().mechanism));
      Must(array_->Clear(Late()));
    }
  }

  Fence New() {
    return pool_ != nullptr ? Must(pool_->New()) : Must(array_->At(next_++));
  }

 private:
  std::unique_ptr<FencePool> pool_;
  std::optional<Allocation> memory_;
  std::unique_ptr<FenceArray> array_;
  std::uint64_t next_ = 0;
};

INSTANTIATE_TEST_SUITE_P(
    In, FenceTest,
    ::testing::Values(Kind{"HostMemory", FencePlace::kHostMemory,
                           FenceMechanism::kStreamMemoryOperations},
                      Kind{"DeviceMemory", FencePlace::kDeviceMemory,
                           FenceMechanism::kStreamMemoryOperations},
                      Kind{"DeviceMemoryByKernels", FencePlace::kDeviceMemory,
                           FenceMechanism::kKernels}),
    [](const auto& which) { return which.param.name; });

class FencePoolTest : public StreamsTest {
 protected:
  Fence New() { return Must(fences_->New()); }

  std::unique_ptr<FencePool> fences_ = Must(FencePool::Create(device));
};

TEST_P(FenceTest, BeginsAtZeroAndSaysWhatItUses) {
  const Fence fence = New();
  EXPECT_EQ(Must(fence.Query()), 0u);
  EXPECT_EQ(fence.mechanism(), GetParam().mechanism);
  EXPECT_EQ(fence.place(), GetParam().place);
}

TEST_P(FenceTest, AStreamsSignalIsSeenByTheHost) {
  Fence fence = New();
  HeldStream held(device);
  ExpectOk(fence.Signal(held.get(), 5));
  EXPECT_EQ(Must(fence.Query()), 0u) << "signalled before its turn";
  held.Release();
  ExpectOk(fence.WaitOnHost(5, Late()));
  EXPECT_EQ(Must(fence.Query()), 5u);
  ExpectOk(fence.WaitOnHost(1, absl::InfinitePast()));
}

TEST_P(FenceTest, AStreamWaitsForAnothersSignal) {
  Fence fence = New();
  ExpectOk(fence.Wait(streams_[0], 2));
  EXPECT_FALSE(IsIdle(streams_[0]));
  ExpectOk(fence.Signal(streams_[1], 1));
  Sync(streams_[1]);
  absl::SleepFor(kMoment);
  EXPECT_FALSE(IsIdle(streams_[0])) << "1 is not 2";
  ExpectOk(fence.Signal(streams_[1], 3));
  Sync(streams_[0]);
}

TEST_P(FenceTest, AStreamWaitsForTheHost) {
  Fence fence = New();
  ExpectOk(fence.Wait(streams_[0], 1));
  EXPECT_FALSE(IsIdle(streams_[0]));
  ExpectOk(fence.SignalFromHost(1));
  Sync(streams_[0]);
}

TEST_P(FenceTest, AWaitForZeroOrForWhatWasReachedHoldsNothingUp) {
  Fence fence = New();
  ExpectOk(fence.Wait(streams_[0], 0));
  ExpectOk(fence.WaitOnHost(0, absl::InfinitePast()));
  ExpectOk(fence.SignalFromHost(9));
  ExpectOk(fence.Wait(streams_[0], 8));
  Sync(streams_[0]);
}

TEST_P(FenceTest, AWaitForAValueThatNeverComesEndsWithItsDeadline) {
  Fence fence = New();
  ExpectOk(fence.SignalFromHost(1));
  for (absl::Duration patience :
       {absl::ZeroDuration(), absl::Microseconds(30), kMoment}) {
    // The least of some: a busy machine lets anybody be late, and a device's
    // answer too, without which nobody knows where the fence is.
    absl::Duration late = absl::InfiniteDuration();
    bool is_said = false;
    for (int i = 0; i < 50 && (late >= absl::Milliseconds(50) || !is_said);
         ++i) {
      const absl::Time deadline = absl::Now() + patience;
      const absl::Status status = fence.WaitOnHost(2, deadline);
      late = std::min(late, absl::Now() - deadline);
      ExpectFails(absl::StatusCode::kDeadlineExceeded, status, "");
      is_said |=
          absl::StrContains(status.message(), "the fence is at 1, not 2");
      EXPECT_TRUE(is_said ||
                  absl::StrContains(status.message(), "has not answered"))
          << status;
    }
    EXPECT_TRUE(is_said);
    EXPECT_GE(late, absl::ZeroDuration());
    EXPECT_LT(late, absl::Milliseconds(50));
  }
}

TEST_P(FenceTest, ItsLargestValueCanBeReachedAndNoOther) {
  Fence fence = New();
  ExpectOk(fence.Wait(streams_[0], kMaxFenceValue));
  ExpectOk(fence.Signal(streams_[1], kMaxFenceValue));
  Sync(streams_[0]);
  EXPECT_EQ(Must(fence.Query()), kMaxFenceValue);
  const std::uint64_t above[] = {kMaxFenceValue + 1, ~std::uint64_t{0}};
  for (std::uint64_t value : above) {
    for (const absl::Status& status :
         {fence.Signal(streams_[0], value), fence.SignalFromHost(value),
          fence.Wait(streams_[0], value), fence.WaitOnHost(value, Late())}) {
      ExpectFails(absl::StatusCode::kInvalidArgument, status,
                  "expected at most 281474976710655");
    }
  }
}

TEST_P(FenceTest, AValueThatGoesBackwardsIsRefused) {
  Fence fence = New();
  ExpectFails(absl::StatusCode::kInvalidArgument, fence.Signal(streams_[0], 0),
              "cannot be signalled 0");
  HeldStream held(device);
  ExpectOk(fence.Signal(held.get(), 5));
  // Refused before it is there: what is on one stream comes in order.
  for (std::uint64_t value : {1, 4, 5}) {
    ExpectFails(absl::StatusCode::kFailedPrecondition,
                fence.Signal(held.get(), value), "cannot go from 5 to");
  }
  // These would come before, and be followed by 5.
  for (std::uint64_t value : {5, 6}) {
    ExpectFails(absl::StatusCode::kFailedPrecondition,
                fence.SignalFromHost(value), "a signal of 5 is on its way");
  }
  EXPECT_EQ(Must(fence.Query()), 0u);
  // This is what somebody may have put before that signal, to be waited for.
  ExpectOk(fence.SignalFromHost(2));
  ExpectOk(fence.Signal(streams_[0], 4));
  Sync(streams_[0]);
  for (std::uint64_t value : {1, 4}) {
    ExpectFails(absl::StatusCode::kFailedPrecondition,
                fence.SignalFromHost(value), "cannot go from 4 to");
    ExpectFails(absl::StatusCode::kFailedPrecondition,
                fence.Signal(streams_[1], value), "cannot go from 4 to");
  }
  held.Release();
  ExpectOk(fence.WaitOnHost(5, Late()));
  ExpectOk(fence.SignalFromHost(6));
  ExpectFails(absl::StatusCode::kFailedPrecondition,
              fence.Signal(streams_[0], 6), "from 6 to 6");
  ExpectOk(fence.Signal(streams_[0], 7));
  ExpectOk(fence.WaitOnHost(7, Late()));
}

TEST_P(FenceTest, StreamsAndTheHostTakeTurnsWithOneFence) {
  Fence fence = New();
  for (std::uint64_t i = 0; i < 300; i += 3) {
    ExpectOk(fence.Wait(streams_[0], i + 2));
    ExpectOk(fence.Signal(streams_[0], i + 3));
    ExpectOk(fence.Wait(streams_[1], i + 1));
    ExpectOk(fence.Signal(streams_[1], i + 2));
    ExpectOk(fence.SignalFromHost(i + 1));
    ExpectOk(fence.WaitOnHost(i + 3, Late()));
  }
}

TEST_P(FenceTest, AnAbandonedFenceLetsGoOfStreamsAndSaysSo) {
  Fence fence = New();
  ExpectOk(fence.SignalFromHost(3));
  ExpectOk(fence.Wait(streams_[0], 100));
  ExpectOk(fence.Wait(streams_[1], kMaxFenceValue));
  absl::SleepFor(kMoment);
  EXPECT_FALSE(IsIdle(streams_[0]));
  ExpectOk(fence.Abandon());
  Sync(streams_[0]);
  Sync(streams_[1]);
  for (const absl::Status& status :
       {fence.Query().status(), fence.Wait(streams_[0], 4),
        fence.WaitOnHost(4, Late()), fence.Signal(streams_[0], 4),
        fence.SignalFromHost(4)}) {
    ExpectFails(absl::StatusCode::kAborted, status,
                "abandoned at the value 3. What comes after that may be "
                "missing: begin anew");
  }
  // What it had reached it has.
  ExpectOk(fence.Wait(streams_[0], 3));
  ExpectOk(fence.WaitOnHost(3, absl::InfinitePast()));
  ExpectOk(fence.Abandon());
  Sync(streams_[0]);
}

TEST_P(FenceTest, ASignalOnItsWayCountsAndTheFenceStaysAbandoned) {
  Fence fence = New();
  HeldStream held(device);
  ExpectOk(fence.Signal(held.get(), 5));
  ExpectOk(fence.Abandon());
  ExpectFails(absl::StatusCode::kAborted, fence.Query().status(),
              "at the value 0");
  held.Release();
  Sync(held.get());
  // The signal has let no wait stand: whoever looks puts the end back.
  ExpectFails(absl::StatusCode::kAborted, fence.Query().status(),
              "at the value 5");
  ExpectOk(fence.Wait(streams_[0], 5));
  Sync(streams_[0]);
}

TEST_P(FenceTest, AStreamCaughtByALateSignalIsLetGoByTheNextLook) {
  Fence fence = New();
  HeldStream held(device);
  ExpectOk(fence.Signal(held.get(), 5));
  HeldStream waiter(device);
  ExpectOk(fence.Wait(waiter.get(), 6));
  ExpectOk(fence.Abandon());
  held.Release();
  Sync(held.get());  // 5 is there again, and 6 is waited for.
  waiter.Release();
  absl::SleepFor(kMoment);
  EXPECT_FALSE(IsIdle(waiter.get())) << "this test tests nothing";
  ExpectFails(absl::StatusCode::kAborted, fence.Query().status(), "5");
  Sync(waiter.get());
}

TEST_P(FenceTest, AWaitEndsWhenItIsNoLongerWorthIt) {
  Fence fence = New();
  int asked = 0;
  const absl::Status status = fence.WaitOnHost(
      1, absl::InfiniteFuture(), {.still_worth = [&] {
        return ++asked < 3 ? absl::OkStatus() : absl::CancelledError("enough");
      }});
  ExpectFails(absl::StatusCode::kCancelled, status,
              "the fence is at 0, not 1: enough");
  EXPECT_EQ(asked, 3);
  // The value comes first.
  ExpectOk(fence.WaitOnHost(1, absl::InfiniteFuture(), {.still_worth = [&] {
                              ExpectOk(fence.SignalFromHost(1));
                              return absl::CancelledError("enough");
                            }}));
}

// Two streams that signal each other and wait.
TEST_P(FenceTest, TwoStreamsMeet) {
  Fence fences[] = {New(), New()};
  Fence* const first[] = {&fences[0]};
  Fence* const second[] = {&fences[1]};
  for (std::uint64_t round = 1; round <= 20; ++round) {
    ExpectOk(Fence::Meet(streams_[0], first, second, round));
    ExpectOk(fences[0].WaitOnHost(round, Late()));
    EXPECT_FALSE(IsIdle(streams_[0])) << "it went on alone";
    ExpectOk(Fence::Meet(streams_[1], second, first, round));
    for (CUstream stream : streams_) Sync(stream);
  }
  ExpectFails(absl::StatusCode::kFailedPrecondition,
              Fence::Meet(streams_[0], first, second, 20),
              "cannot go from 20 to 20");
  EXPECT_TRUE(IsIdle(streams_[0]));
}

// A barrier of several, each with a fence of each other one. What a member wrote
// before it is what all read after it.
TEST_P(FenceTest, ManyStreamsMeet) {
  constexpr int kMembers = 5;
  constexpr std::uint32_t kRounds = 12;
  const std::vector<Stream> streams(kMembers);
  std::vector<std::vector<Fence>> of(kMembers);  // of[a][b]: b's arrival at a.
  for (auto& fences : of) {
    for (int i = 0; i < kMembers; ++i) fences.push_back(New());
  }
  const Allocation words = Must(Allocation::Create(device, {.size = kGranule}));
  void* pinned = nullptr;
  ASSERT_EQ(driver()->cuMemHostAlloc(&pinned, kRounds * kMembers * 4, 0),
            CUDA_SUCCESS);
  auto* const seen = static_cast<std::uint32_t*>(pinned);
  const auto word = [&words](std::uint32_t round, int member) {
    return words.address() + (round * kMembers + member) * 4;
  };
  for (std::uint32_t round = 0; round < kRounds; ++round) {
    for (int me = 0; me < kMembers; ++me) {
      std::vector<Fence*> signals;
      std::vector<Fence*> waits;
      for (int other = 0; other < kMembers; ++other) {
        if (other == me) continue;
        signals.push_back(&of[other][me]);
        waits.push_back(&of[me][other]);
      }
      EXPECT_EQ(driver()->cuMemsetD32Async(word(round, me), round + 1, 1,
                                           streams[me].get()),
                CUDA_SUCCESS);
      ExpectOk(Fence::Meet(streams[me].get(), signals, waits, round + 1));
      // What the next one wrote.
      const int next = (me + 1) % kMembers;
      EXPECT_EQ(
          driver()->cuMemcpyDtoHAsync(seen + round * kMembers + me,
                                      word(round, next), 4, streams[me].get()),
          CUDA_SUCCESS);
    }
  }
  for (const Stream& stream : streams) stream.Sync();
  for (std::uint32_t i = 0; i < kRounds * kMembers; ++i) {
    EXPECT_EQ(seen[i], i / kMembers + 1) << i;
  }
  EXPECT_EQ(driver()->cuMemFreeHost(pinned), CUDA_SUCCESS);
}

// More than go into one kernel.
TEST_P(FenceTest, OneStreamMeetsAFewHundred) {
  std::vector<Fence> fences;
  for (int i = 0; i < 300; ++i) fences.push_back(New());
  std::vector<Fence*> signals;
  std::vector<Fence*> waits;
  for (int i = 0; i < 150; ++i) {
    signals.push_back(&fences[i]);
    waits.push_back(&fences[150 + i]);
  }
  ExpectOk(Fence::Meet(streams_[0], signals, waits, 1));
  for (Fence* fence : signals) ExpectOk(fence->WaitOnHost(1, Late()));
  for (Fence* fence : waits) {
    EXPECT_FALSE(IsIdle(streams_[0]));
    ExpectOk(fence->SignalFromHost(1));
  }
  Sync(streams_[0]);
}

TEST_P(FenceTest, AMeetingThatIsRefusedSignalsNobody) {
  Fence fences[] = {New(), New(), New()};
  ExpectOk(fences[1].Abandon());
  Fence* const good[] = {&fences[0]};
  Fence* const abandoned[] = {&fences[1]};
  Fence* const both[] = {&fences[0], &fences[1]};
  ExpectFails(absl::StatusCode::kAborted,
              Fence::Meet(streams_[0], both, good, 1), "abandoned");
  ExpectFails(absl::StatusCode::kAborted,
              Fence::Meet(streams_[0], good, abandoned, 1), "abandoned");
  for (const std::uint64_t value : {std::uint64_t{0}, kMaxFenceValue + 1}) {
    ExpectFails(absl::StatusCode::kInvalidArgument,
                Fence::Meet(streams_[0], good, good, value), "a fence cannot");
  }
  EXPECT_TRUE(IsIdle(streams_[0]));
  EXPECT_EQ(Must(fences[0].Query()), 0u);
}

TEST_P(FenceTest, AnAbandonedFenceLetsGoOfAMeeting) {
  Fence fences[] = {New(), New()};
  Fence* const own[] = {&fences[0]};
  Fence* const theirs[] = {&fences[1]};
  ExpectOk(Fence::Meet(streams_[0], own, theirs, 1));
  ExpectOk(own[0]->WaitOnHost(1, Late()));
  EXPECT_FALSE(IsIdle(streams_[0]));
  ExpectOk(fences[1].Abandon());
  Sync(streams_[0]);
}

TEST_F(FencePoolTest, RoomForMoreThanThereCanBeIsRefused) {
  Must(fences_->Reserve(10));
  const absl::Status refused = fences_->Reserve(std::uint64_t{kPoolSlots} + 1);
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(refused.message(), HasSubstr(std::to_string(kPoolSlots)));
}

TEST_F(FencePoolTest, GivenBackTwiceIsAnError) {
  Fence fence = New();
  ExpectOk(fence.Release());
  for (const absl::Status& status :
       {fence.Release(), fence.Signal(streams_[0], 1),
        fence.Wait(streams_[0], 1), fence.SignalFromHost(1),
        fence.WaitOnHost(1, Late()), fence.Query().status(), fence.Abandon(),
        fences_->Export(fence).status()}) {
    ExpectFails(absl::StatusCode::kFailedPrecondition, status,
                "the fence was given back");
  }
  fence = New();  // And is as good as new.
  EXPECT_EQ(Must(fence.Query()), 0u);
  const Fence moved = std::move(fence);
  EXPECT_EQ(Must(moved.Query()), 0u);
  EXPECT_EQ(fences_->statistics().fences, 1u);
}

TEST_F(FencePoolTest, OnlyItsOwnPoolExportsAFence) {
  const std::unique_ptr<FencePool> other = Must(FencePool::Create(device));
  const Fence fence = New();
  ExpectFails(absl::StatusCode::kInvalidArgument, other->Export(fence).status(),
              "of another pool");
  const FenceTicket ticket = Must(fences_->Export(fence));
  EXPECT_EQ(Must(fences_->Export(fence)), ticket);
  EXPECT_EQ(Must(DecodeFenceTicket(EncodeFenceTicket(ticket))), ticket);
  const std::unique_ptr<FencePool> own =
      Must(FencePool::Create(device, {.sharing = SharePolicy::Private()}));
  const Fence mine = Must(own->New());
  ExpectFails(absl::StatusCode::kFailedPrecondition, own->Export(mine).status(),
              "private");
}

TEST_F(FencePoolTest, OutlivesThePoolThatMadeIt) {
  Fence fence = New();
  fences_.reset();
  ExpectOk(fence.Wait(streams_[0], 1));
  ExpectOk(fence.Signal(streams_[1], 1));
  Sync(streams_[0]);
}

// Late work of a fence that is gone harms nobody.
TEST_F(FencePoolTest, ItsMemoryIsUsedAgainOnlyAfterItsSignals) {
  HeldStream held(device);
  const auto used = [this] { return fences_->pool().statistics().live_blocks; };
  {
    Fence gone = New();
    ExpectOk(gone.Signal(held.get(), 1000));
  }
  EXPECT_EQ(fences_->statistics().waiting, 1u);
  EXPECT_EQ(fences_->statistics().fences, 0u);
  Fence next = New();
  EXPECT_EQ(used(), 2u) << "the memory was handed out with a signal to come";
  held.Release();
  Sync(held.get());
  EXPECT_EQ(Must(next.Query()), 0u) << "another fence's signal";
  ExpectOk(next.Release());
  next = New();
  EXPECT_EQ(fences_->statistics().waiting, 0u);
  EXPECT_EQ(used(), 1u);
  EXPECT_EQ(Must(next.Query()), 0u);
}

TEST_F(FencePoolTest, AWaitThatIsStillOnAStreamIsNotCaughtByTheNextFence) {
  HeldStream held(device);
  std::vector<Fence> gone;
  for (int i = 0; i < 100; ++i) {
    gone.push_back(New());
    ExpectOk(gone.back().SignalFromHost(7));
    ExpectOk(gone.back().Wait(held.get(), 7));
  }
  gone.clear();
  std::vector<Fence> next;
  for (int i = 0; i < 100; ++i) {
    next.push_back(New());
    EXPECT_EQ(Must(next.back().Query()), 0u);
  }
  EXPECT_EQ(fences_->pool().statistics().live_blocks, 100u)
      << "this test tests nothing: the memory is not the same";
  held.Release();
  Sync(held.get());  // For ever, if they began at nothing.
}

TEST_F(FencePoolTest, AHundredThousandLive) {
  constexpr std::size_t kCount = 100'000;
  ExpectOk(fences_->Reserve(kCount));
  std::vector<Fence> fences;
  fences.reserve(kCount);
  for (std::size_t i = 0; i < kCount; ++i) fences.push_back(New());
  for (std::size_t i = 0; i < kCount; ++i) {
    ASSERT_TRUE(fences[i].SignalFromHost(i + 1).ok());
  }
  std::set<std::uint32_t> slots;
  for (std::size_t i = 0; i < kCount; ++i) {
    ASSERT_EQ(Must(fences[i].Query()), i + 1);
    slots.insert(Must(fences_->Export(fences[i])).slot);
  }
  EXPECT_EQ(slots.size(), kCount);
  EXPECT_EQ(fences_->statistics().fences, kCount);
  // Some of them on streams.
  for (std::size_t i = 0; i < kCount; i += 1000) {
    ExpectOk(fences[i].Wait(streams_[0], i + 2));
    ExpectOk(fences[i].Signal(streams_[1], i + 2));
  }
  Sync(streams_[0]);
  EXPECT_LT(fences_->statistics().reserved, 64 * kMiB);
}

TEST_F(FencePoolTest, MakingOneCallsNoDriver) {
  DriverFaults faults;
  const platform::Driver counted = FaultyDriver(driver(), &faults);
  const std::unique_ptr<FencePool> pool =
      Must(FencePool::Create(Must(Device::ByOrdinal(counted, 0))));
  EXPECT_GT(faults.calls(), 3u) << "this driver does not count";
  faults.ResetCounts();
  std::vector<Fence> fences;
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 5000; ++i) {
      fences.push_back(Must(pool->New()));
      Must(pool->Export(fences.back()));
      Must(fences.back().SignalFromHost(1));
    }
    fences.clear();
  }
  EXPECT_EQ(faults.calls(), 0u)
      << ::testing::PrintToString(faults.CallsByEntry());
  // What is put on a stream is one call each.
  Fence fence = Must(pool->New());
  ExpectOk(fence.Signal(streams_[0], 1));
  ExpectOk(fence.Wait(streams_[0], 1));
  EXPECT_EQ(faults.calls(), 2u)
      << ::testing::PrintToString(faults.CallsByEntry());
  Sync(streams_[0]);
}

TEST_F(FencePoolTest, WhatTheDriverRefusesIsToldAndNotOnItsWay) {
  DriverFaults faults;
  const platform::Driver failing = FaultyDriver(driver(), &faults);
  const std::unique_ptr<FencePool> pool =
      Must(FencePool::Create(Must(Device::ByOrdinal(failing, 0))));
  Fence fence = Must(pool->New());
  for (const char* entry : {"cuStreamWriteValue64", "cuStreamWaitValue64"}) {
    faults.Arm({.entry = entry, .result = CUDA_ERROR_INVALID_HANDLE});
    const bool writes = std::string(entry) == "cuStreamWriteValue64";
    ExpectFails(
        absl::StatusCode::kInvalidArgument,
        writes ? fence.Signal(streams_[0], 5) : fence.Wait(streams_[0], 5),
        entry);
    EXPECT_EQ(faults.Disarm().fired, 1u);
  }
  ExpectOk(fence.Signal(streams_[0], 5));
  Sync(streams_[0]);
}

TEST_F(FencePoolTest, LivesOnTheNodeThatIsNamed) {
  const std::unique_ptr<FencePool> pool =
      Must(FencePool::Create(device, {.host_numa_node = 0}));
  Fence fence = Must(pool->New());
  ExpectOk(fence.Signal(streams_[0], 1));
  ExpectOk(fence.WaitOnHost(1, Late()));
  EXPECT_FALSE(FencePool::Create(device, {.host_numa_node = 4000}).ok());
}

TEST_F(FencePoolTest, WithoutMemoryForOneMoreSaysSoAndGoesOn) {
  DriverFaults faults;
  const platform::Driver failing = FaultyDriver(driver(), &faults);
  const std::unique_ptr<FencePool> pool =
      Must(FencePool::Create(Must(Device::ByOrdinal(failing, 0))));
  std::vector<Fence> fences;
  faults.Arm(
      {.point = {.times = FaultPoint::kForEver}, .entry = "cuMemCreate"});
  absl::Status refused;
  while (refused.ok()) {
    absl::StatusOr<Fence> fence = pool->New();
    refused = fence.status();
    if (fence.ok()) fences.push_back(*std::move(fence));
  }
  EXPECT_GE(faults.Disarm().fired, 1u);
  EXPECT_EQ(fences.size(), 8192u);
  ExpectFails(absl::StatusCode::kResourceExhausted, refused, "cuMemCreate(");
  EXPECT_EQ(pool->statistics().fences, fences.size());
  ExpectOk(pool->New().status());
}

TEST_F(FencePoolTest, AnImporterThatCannotListItsDevicesDialsNobody) {
  DriverFaults faults;
  const platform::Driver failing = FaultyDriver(driver(), &faults);
  faults.Arm({.entry = "cuDeviceGetCount", .result = CUDA_ERROR_UNKNOWN});
  const absl::Status refused =
      ImportedFencePool::Subscribe(failing, "no ticket", {}, Late()).status();
  EXPECT_EQ(faults.Disarm().fired, 1u);
  EXPECT_EQ(platform::ResultOf(refused), CUDA_ERROR_UNKNOWN) << refused;
}

// Where a device cannot signal by memory, nothing else is used silently.
platform::Driver WithoutStreamOperations();

CUresult CUDAAPI NoStreamOperations(int* value, CUdevice_attribute attribute,
                                    CUdevice on) {
  if (attribute == CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS) {
    *value = 0;
    return CUDA_SUCCESS;
  }
  return TestDriver()->cuDeviceGetAttribute(value, attribute, on);
}

TEST_F(FencePoolTest, AreRefusedWhereStreamsCannotSignalByMemory) {
  const platform::Driver lacking = WithoutStreamOperations();
  const absl::Status status =
      FencePool::Create(Must(Device::ByOrdinal(lacking, 0))).status();
  ExpectFails(absl::StatusCode::kUnimplemented, status,
              "no 64-bit stream memory operations");
  ExpectFails(absl::StatusCode::kUnimplemented, status, "cuIpcGetEventHandle");
  ExpectFails(absl::StatusCode::kUnimplemented,
              FenceArray::Over(Must(Device::ByOrdinal(lacking, 0)), kGranule,
                               kFenceBytes)
                  .status(),
              "no 64-bit stream memory operations");
  // Nor does an importer dial anybody for what it could not use.
  ExpectFails(
      absl::StatusCode::kUnimplemented,
      ImportedFencePool::Subscribe(lacking, "no ticket", {}, Late()).status(),
      "no 64-bit stream memory operations");
}

platform::Driver WithoutStreamOperations() {
  return Must(platform::Driver::LoadFromLookup(
      "without stream operations", [](const char* symbol) -> void* {
        static const auto answer = [](const char* name, void** out, int,
                                      cuuint64_t) -> CUresult {
          *out = nullptr;
          platform::ForEachDriverEntry([&](auto entry) {
            if (std::string(entry.name) != name) return;
            *out = reinterpret_cast<void*>(TestDriver().table().*
                                           (decltype(entry)::kMember));
          });
          if (std::string(name) == "cuDeviceGetAttribute") {
            *out = reinterpret_cast<void*>(&NoStreamOperations);
          }
          return *out == nullptr ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
        };
        if (std::string(symbol) != "cuGetProcAddress") return nullptr;
        CUresult(CUDAAPI * function)(const char*, void**, int, cuuint64_t) =
            answer;
        return reinterpret_cast<void*>(function);
      }));
}

TEST_F(FencePoolTest,
       AThreadWithoutAContextHasTheDefaultStreamOfThePoolsDevice) {
  Fence fence = New();
  std::thread([&] {
    ExpectOk(fence.Wait(nullptr, 1));
    ExpectOk(fence.SignalFromHost(1));
    ExpectOk(fence.Signal(nullptr, 2));
    ExpectOk(fence.WaitOnHost(2, Late()));
    CUcontext current = nullptr;
    EXPECT_EQ(driver()->cuCtxGetCurrent(&current), CUDA_SUCCESS);
    EXPECT_EQ(current, nullptr);
  }).join();
}

TEST_F(FencePoolTest, ServesAllDevicesItWasGiven) {
  const Device* const peer = Peer();
  if (peer == nullptr) GTEST_SKIP() << "needs two devices";
  const PrimaryContext context = Must(PrimaryContext::Retain(*peer));
  const std::unique_ptr<FencePool> pool =
      Must(FencePool::Create(device, {.devices = {device, *peer}}));
  Fence fence = Must(pool->New());
  CUstream other = nullptr;
  {
    const CurrentContext current = Must(context.MakeCurrent());
    ASSERT_EQ(driver()->cuStreamCreate(&other, CU_STREAM_NON_BLOCKING),
              CUDA_SUCCESS);
    ExpectOk(fence.Wait(other, 1));
  }
  EXPECT_FALSE(IsIdle(other));
  ExpectOk(fence.Signal(streams_[0], 1));
  Sync(other);
  {
    const CurrentContext current = Must(context.MakeCurrent());
    ExpectOk(fence.Signal(other, 2));
  }
  ExpectOk(fence.Wait(streams_[0], 2));
  Sync(streams_[0]);
  EXPECT_EQ(driver()->cuStreamDestroy(other), CUDA_SUCCESS);
}

}  // namespace
}  // namespace vmm::testing
