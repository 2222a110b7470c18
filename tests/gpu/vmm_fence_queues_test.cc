// Streams that wait for fences, and the other streams of their process: a device has
// fewer hardware queues than a program has streams. docs/ordering.md has what was
// measured. In processes of their own: how many queues there are is asked once.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/gpu/changed_driver.h"
#include "tests/gpu/stream.h"
#include "tests/gpu/vmm_driver_test.h"
#include "tests/support/child.h"
#include "tests/support/must.h"
#include "vmm/memory/allocation.h"
#include "vmm/sync/fence.h"
#include "vmm/sync/fence_array.h"
#include "vmm/sync/fence_pool.h"

namespace vmm::testing {
namespace {

constexpr std::size_t kOthers = 64;
// Much longer than what was put on the streams takes.
constexpr absl::Duration kForGood = absl::Milliseconds(200);

// What a child finds of streams that are not to wait.
class Streams {
 public:
  explicit Streams(std::size_t waiting) : waiting_(waiting), others_(kOthers) {
    // What a driver does once for a stream it does while none waits.
    FillAll(waiting_, kOthers);
    FillAll(others_, 0);
    for (const Stream& stream : waiting_) stream.Sync();
    for (const Stream& stream : others_) stream.Sync();
  }

  const std::vector<Stream>& waiting() const { return waiting_; }
  // How many of the others stand with a fill after `patience`, or once none does.
  std::size_t ThatStand(absl::Duration patience) {
    FillAll(others_, 0);
    const absl::Time end = absl::Now() + patience;
    std::size_t standing = 0;
    do {
      standing = 0;
      for (const Stream& stream : others_) standing += stream.IsIdle() ? 0 : 1;
    } while (standing != 0 && absl::Now() < end);
    return standing;
  }

 private:
  // Each its own part of the memory, from `at` on: nobody orders them.
  void FillAll(const std::vector<Stream>& streams, std::size_t at) {
    constexpr std::size_t kPart = 4096;
    for (const Stream& stream : streams) {
      const CUdeviceptr part = memory_.address() + kPart * at++;
      EXPECT_EQ(TestDriver()->cuMemsetD8Async(part, 1, kPart, stream.get()),
                CUDA_SUCCESS);
    }
  }

  const Allocation memory_ =
      Must(Allocation::Create(FirstDevice(), {.size = 1}));
  const std::vector<Stream> waiting_;
  const std::vector<Stream> others_;
};

// "values" or "kernels", how many streams wait, and whether the others stand.
int SeeWhoStands(const std::vector<std::string>& args) {
  const Device device = FirstDevice();
  const PrimaryContext context = Must(PrimaryContext::Retain(device));
  const CurrentContext current = Must(context.MakeCurrent());
  const std::size_t waits = std::stoul(args[1]);
  const bool stand = args[2] == "all";
  Streams streams(waits);
  // One that all wait for is let go of by one write.
  const Allocation memory = Must(Allocation::Create(device, {.size = 1}));
  std::unique_ptr<FencePool> pool;
  std::unique_ptr<FenceArray> array;
  if (args[0] == "values") {
    pool = Must(FencePool::Create(device));
  } else {
    array = Must(FenceArray::Over(device, memory.address(), memory.size(),
                                  FenceMechanism::kKernels));
  }
  Fence fence = pool != nullptr ? Must(pool->New()) : Must(array->At(0));
  for (const Stream& stream : streams.waiting()) {
    Must(fence.Wait(stream.get(), 1));
  }
  EXPECT_EQ(streams.ThatStand(stand ? kForGood : absl::Seconds(30)),
            stand ? kOthers : 0);
  for (const Stream& stream : streams.waiting()) EXPECT_FALSE(stream.IsIdle());
  Must(fence.SignalFromHost(1));
  // Before the fence's memory goes.
  for (const Stream& stream : streams.waiting()) stream.Sync();
  return ::testing::Test::HasFailure() ? 1 : 0;
}
const bool kSeeWhoStands = RegisterChild("see_who_stands", &SeeWhoStands);

void ExpectStand(const char* by, int waiting, const char* others,
                 const char* connections) {
  EXPECT_EQ(
      Child::Start("see_who_stands", {by, std::to_string(waiting), others},
                   {{"CUDA_DEVICE_MAX_CONNECTIONS", connections}})
          .Wait(),
      0);
}

TEST(FencesAndQueues, AsManyWaitsAsThereAreStopAllOtherStreams) {
  ExpectStand("values", 8, "all", "8");
  ExpectStand("values", 32, "all", "32");
}

TEST(FencesAndQueues, WithThirtyTwoEightWaitsStopNoOtherStream) {
  ExpectStand("values", 8, "none", "32");
}

TEST(FencesAndQueues, WaitsByKernelsStopNoOtherStream) {
  ExpectStand("kernels", 64, "none", "8");
}

// The host looks at fences in a device's memory by copies to the host.
int LookWhileStreamsWait(const std::vector<std::string>& args) {
  const Device device = FirstDevice();
  const PrimaryContext context = Must(PrimaryContext::Retain(device));
  const CurrentContext current = Must(context.MakeCurrent());
  const bool copied = args[0] == "copied";
  const Allocation memory = Must(Allocation::Create(device, {.size = 1}));
  const Allocation data = Must(Allocation::Create(device, {.size = 1}));
  const std::unique_ptr<FenceArray> array =
      Must(FenceArray::Over(device, memory.address(), memory.size()));
  const std::vector<Stream> streams(8);
  const Stream other;
  Fence fence = Must(array->At(0));
  for (const Stream& stream : streams) {
    std::array<std::uint8_t, 64> bytes;
    EXPECT_EQ(TestDriver()->cuMemsetD8Async(data.address(), 1, bytes.size(),
                                            stream.get()),
              CUDA_SUCCESS);
    if (copied) {
      EXPECT_EQ(TestDriver()->cuMemcpyDtoHAsync(bytes.data(), data.address(),
                                                bytes.size(), stream.get()),
                CUDA_SUCCESS);
    }
    stream.Sync();
  }
  for (const Stream& stream : streams) Must(fence.Wait(stream.get(), 2));
  if (copied) {
    const absl::Status looked = fence.WaitOnHost(1, absl::InfinitePast());
    EXPECT_TRUE(absl::IsDeadlineExceeded(looked)) << looked;
    EXPECT_TRUE(
        absl::StrContains(looked.message(), "CUDA_DEVICE_MAX_CONNECTIONS"))
        << looked;
    Must(fence.Signal(other.get(), 2));
  } else {
    EXPECT_EQ(Must(fence.Query()), 0u);
    Must(fence.SignalFromHost(2));
  }
  for (const Stream& stream : streams) stream.Sync();
  EXPECT_EQ(Must(fence.Query()), 2u);
  return ::testing::Test::HasFailure() ? 1 : 0;
}
const bool kLookWhileStreamsWait =
    RegisterChild("look_while_streams_wait", &LookWhileStreamsWait);

TEST(FencesAndQueues, TheHostIsAnsweredWhileAsManyStreamsWaitAsThereAre) {
  EXPECT_EQ(Child::Start("look_while_streams_wait", {"filled"},
                         {{"CUDA_DEVICE_MAX_CONNECTIONS", "8"}})
                .Wait(),
            0);
}

TEST(FencesAndQueues, TheHostIsToldOfQueuesWhereThoseCopiedToTheHostBefore) {
  EXPECT_EQ(Child::Start("look_while_streams_wait", {"copied"},
                         {{"CUDA_DEVICE_MAX_CONNECTIONS", "8"}})
                .Wait(),
            0);
}

// As many streams as there are queues, which filled last and wait until LetGo(). It
// tries no kind of handle.
class Held {
 public:
  explicit Held(const Device& device)
      : memory_(Must(Allocation::Create(
            device, {.size = 1, .sharing = SharePolicy::Private()}))),
        array_(Must(FenceArray::Over(device, memory_.address(), 256))),
        fence_(Must(array_->At(0))),
        streams_(8) {
    for (const Stream& stream : streams_) {
      EXPECT_EQ(TestDriver()->cuMemsetD8Async(memory_.address() + 4096, 1, 64,
                                              stream.get()),
                CUDA_SUCCESS);
      stream.Sync();
      Must(fence_.Wait(stream.get(), 1));
    }
  }
  ~Held() {
    LetGo();
    for (const Stream& stream : streams_) stream.Sync();
  }
  void LetGo() {
    if (Must(fence_.Query()) == 0) Must(fence_.SignalFromHost(1));
  }

 private:
  const Allocation memory_;
  const std::unique_ptr<FenceArray> array_;
  Fence fence_;
  const std::vector<Stream> streams_;
};

int TryAKindWhileStreamsWait(const std::vector<std::string>& args) {
  const Device device = FirstDevice();
  const PrimaryContext context = Must(PrimaryContext::Retain(device));
  const CurrentContext current = Must(context.MakeCurrent());
  const absl::Status known = device.Probe(kForeignKind);
  Held held(device);
  absl::Status tried;
  std::thread first([&] { tried = device.Probe(kNativeKind); });
  if (args[0] == "others") {
    absl::SleepFor(kForGood);
    const absl::Time begin = absl::Now();
    EXPECT_EQ(device.Probe(kForeignKind), known);
    Must(Allocation::Create(device,
                            {.size = 1, .sharing = SharePolicy::Private()}));
    EXPECT_LT(absl::Now() - begin, absl::Seconds(5));
    held.LetGo();
  }
  first.join();
  if (args[0] == "others") {
    EXPECT_TRUE(tried.ok()) << tried;
    return ::testing::Test::HasFailure() ? 1 : 0;
  }
  EXPECT_TRUE(absl::IsUnavailable(tried)) << tried;
  EXPECT_TRUE(absl::StrContains(tried.message(), "CUDA_DEVICE_MAX_CONNECTIONS"))
      << tried;
  held.LetGo();
  // It was of a moment, and what the device comes to now is there.
  const absl::Status again = device.Probe(kNativeKind);
  EXPECT_TRUE(again.ok()) << again;
  return ::testing::Test::HasFailure() ? 1 : 0;
}
const bool kTryAKindWhileStreamsWait =
    RegisterChild("try_a_kind_while_streams_wait", &TryAKindWhileStreamsWait);

TEST(FencesAndQueues, WhoTriesAKindWhileAsManyWaitAsThereAreStopsNobodyElse) {
  EXPECT_EQ(Child::Start("try_a_kind_while_streams_wait", {"others"},
                         {{"CUDA_DEVICE_MAX_CONNECTIONS", "8"}})
                .Wait(),
            0);
}

TEST(FencesAndQueues, AKindIsTriedForTenSecondsWhileAsManyWaitAsThereAre) {
  EXPECT_EQ(Child::Start("try_a_kind_while_streams_wait", {"alone"},
                         {{"CUDA_DEVICE_MAX_CONNECTIONS", "8"}})
                .Wait(),
            0);
}

std::atomic<int> fills = 0;
CUresult CUDAAPI CountedFill(CUdeviceptr at, unsigned char value,
                             std::size_t bytes, CUstream stream) {
  ++fills;
  return TestDriver()->cuMemsetD8Async(at, value, bytes, stream);
}

int ClearWhileStreamsWait(const std::vector<std::string>&) {
  platform::DriverTable table = TestDriver().table();
  table.cuMemsetD8Async = &CountedFill;
  const Device device = Must(Device::ByOrdinal(ChangedDriver(table), 0));
  const PrimaryContext context = Must(PrimaryContext::Retain(device));
  const CurrentContext current = Must(context.MakeCurrent());
  const Allocation memory = Must(Allocation::Create(device, {.size = 1}));
  const std::unique_ptr<FenceArray> array =
      Must(FenceArray::Over(device, memory.address(), memory.size()));
  Held held(device);
  const absl::Status cleared = array->Clear(Deadline::In(kForGood));
  EXPECT_TRUE(absl::IsDeadlineExceeded(cleared)) << cleared;
  EXPECT_TRUE(absl::StrContains(cleared.message(), "may do so yet")) << cleared;
  EXPECT_TRUE(
      absl::StrContains(cleared.message(), "streams of this process wait as"))
      << cleared;
  EXPECT_TRUE(absl::IsDeadlineExceeded(array->Clear(Deadline::In(kForGood))));
  EXPECT_EQ(fills, 1) << "the driver waits once its queue is full";
  held.LetGo();
  Must(array->Clear(Deadline::In(absl::Seconds(30))));
  EXPECT_EQ(Must(Must(array->At(0)).Query()), 0u);
  return ::testing::Test::HasFailure() ? 1 : 0;
}
const bool kClearWhileStreamsWait =
    RegisterChild("clear_while_streams_wait", &ClearWhileStreamsWait);

TEST(FencesAndQueues, WhatClearDidNotAwaitIsAwaitedByTheNext) {
  EXPECT_EQ(Child::Start("clear_while_streams_wait", {},
                         {{"CUDA_DEVICE_MAX_CONNECTIONS", "8"}})
                .Wait(),
            0);
}

std::atomic<bool> says_nothing = false;
CUresult CUDAAPI QueryOrNot(CUstream stream) {
  return says_nothing ? CUDA_ERROR_INVALID_HANDLE
                      : TestDriver()->cuStreamQuery(stream);
}

std::atomic<int> unmaps = 0;
CUresult CUDAAPI CountedUnmap(CUdeviceptr at, std::size_t bytes) {
  ++unmaps;
  return TestDriver()->cuMemUnmap(at, bytes);
}

// The driver does not say whether an array's work is done as that goes, and the copy
// that would say so stands behind it.
int GoWhileStreamsWait(const std::vector<std::string>&) {
  platform::DriverTable table = TestDriver().table();
  table.cuStreamQuery = &QueryOrNot;
  table.cuMemUnmap = &CountedUnmap;
  const Device device = Must(Device::ByOrdinal(ChangedDriver(table), 0));
  const PrimaryContext context = Must(PrimaryContext::Retain(device));
  const CurrentContext current = Must(context.MakeCurrent());
  const Allocation memory = Must(Allocation::Create(device, {.size = 1}));
  std::unique_ptr<FenceArray> array =
      Must(FenceArray::Over(device, memory.address(), memory.size()));
  Held held(FirstDevice());
  says_nothing = true;
  const absl::Status cleared = array->Clear(Deadline::In(kForGood));
  EXPECT_TRUE(absl::IsInvalidArgument(cleared)) << cleared;
  unmaps = 0;
  array.reset();
  EXPECT_EQ(unmaps, 0) << "the copy comes yet";
  says_nothing = false;
  held.LetGo();
  EXPECT_EQ(TestDriver()->cuCtxSynchronize(), CUDA_SUCCESS);
  return ::testing::Test::HasFailure() ? 1 : 0;
}
const bool kGoWhileStreamsWait =
    RegisterChild("go_while_streams_wait", &GoWhileStreamsWait);

TEST(FencesAndQueues, WhereACopyArrivesThatNothingIsSaidOfStays) {
  EXPECT_EQ(Child::Start("go_while_streams_wait", {},
                         {{"CUDA_DEVICE_MAX_CONNECTIONS", "8"}})
                .Wait(),
            0);
}

}  // namespace
}  // namespace vmm::testing
