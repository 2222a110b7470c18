// Fences in device memory: what is theirs alone. What holds for every fence is
// in vmm_fence_test.cc.
#include <gmock/gmock.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/gpu/stream.h"
#include "tests/gpu/vmm_driver_test.h"
#include "tests/support/child.h"
#include "tests/support/driver_faults.h"
#include "tests/support/emulator.h"
#include "vmm/memory/allocation.h"
#include "vmm/sync/fence.h"
#include "vmm/sync/fence_array.h"
#include "vmm/sync/internal/fence_words.h"

namespace vmm::testing {
namespace {

using ::testing::HasSubstr;

constexpr std::uint64_t kEnd = fence::kSpan;

class FenceArrayTest : public DriverTest {
 protected:
  FenceArrayTest() { Must(array_->Clear(Late())); }

  // Another look at the same memory, as another process has.
  std::unique_ptr<FenceArray> Another() {
    return Must(FenceArray::Over(device, memory_.address(), memory_.size()));
  }
  // Writes and reads words of fence 0, as no fence does. A copy to the device
  // may arrive after the call, so it is waited for. REQUIRES: no stream waits;
  // the default stream may stand behind it (seen on H200).
  void Plant(std::size_t offset, std::uint64_t value) {
    EXPECT_EQ(driver()->cuMemcpyHtoD(memory_.address() + offset, &value,
                                     sizeof(value)),
              CUDA_SUCCESS);
    EXPECT_EQ(driver()->cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  }
  std::uint64_t Raw(std::size_t offset) {
    std::uint64_t value = 0;
    EXPECT_EQ(driver()->cuMemcpyDtoH(&value, memory_.address() + offset,
                                     sizeof(value)),
              CUDA_SUCCESS);
    return value;
  }
  static void ExpectFails(absl::StatusCode code, const absl::Status& status,
                          const char* words) {
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(words));
  }

  const Allocation memory_ =
      Must(Allocation::Create(device, {.size = kGranule}));
  std::unique_ptr<FenceArray> array_ = Another();
};

TEST_F(FenceArrayTest, HasAsManyAsThereIsRoomFor) {
  EXPECT_EQ(array_->size(), kGranule / kFenceBytes);
  const Fence last = Must(array_->At(array_->size() - 1));
  EXPECT_EQ(Must(last.Query()), 0u);
  ExpectFails(absl::StatusCode::kInvalidArgument,
              array_->At(array_->size()).status(), "fence 8192 of 8192");
  const std::unique_ptr<FenceArray> one =
      Must(FenceArray::Over(device, memory_.address() + 512, kFenceBytes));
  EXPECT_EQ(one->size(), 1u);
}

TEST_F(FenceArrayTest, NeedsWholeFencesInMemoryThatItsDeviceMayWrite) {
  const CUdeviceptr at = memory_.address();
  const struct {
    CUdeviceptr at;
    std::uint64_t bytes;
  } uneven[] = {{at, 0}, {at, 255}, {at + 8, 256}};
  for (const auto& range : uneven) {
    ExpectFails(absl::StatusCode::kInvalidArgument,
                FenceArray::Over(device, range.at, range.bytes).status(),
                "expected multiples of 256");
  }
  // To where it began, around all addresses: both ends may be written.
  ExpectFails(
      absl::StatusCode::kInvalidArgument,
      FenceArray::Over(device, at + 512, std::uint64_t{0} - 256).status(),
      absl::StrCat("18446744073709551360 bytes at 0x", absl::Hex(at + 512))
          .c_str());
  Allocation other = Must(Allocation::Create(device, {.size = kGranule}));
  Must(other.SetAccess({{Location::On(device), Access::kRead}}));
  ExpectFails(absl::StatusCode::kFailedPrecondition,
              FenceArray::Over(device, other.address(), kGranule).status(),
              "may not write at 0x");
  Must(other.Unmap());
  ExpectFails(absl::StatusCode::kFailedPrecondition,
              FenceArray::Over(device, other.address(), kGranule).status(),
              "may not write at 0x");
  CUdeviceptr plain = 0;
  ASSERT_EQ(driver()->cuMemAlloc(&plain, kGranule), CUDA_SUCCESS);
  ExpectFails(absl::StatusCode::kFailedPrecondition,
              FenceArray::Over(device, plain, kGranule).status(),
              "cuMemCreate");
  EXPECT_EQ(driver()->cuMemFree(plain), CUDA_SUCCESS);
}

TEST_F(FenceArrayTest, OneFenceIsTheSameForAllThatHaveTheMemory) {
  const std::unique_ptr<FenceArray> other = Another();
  Fence ours = Must(array_->At(7));
  Fence theirs = Must(other->At(7));
  const Fence next = Must(other->At(8));
  const Stream stream;
  Must(ours.Wait(stream.get(), 2));
  Must(theirs.SignalFromHost(2));
  stream.Sync();
  EXPECT_EQ(Must(ours.Query()), 2u);
  EXPECT_EQ(Must(next.Query()), 0u);
  Must(ours.Signal(stream.get(), 3));
  Must(theirs.WaitOnHost(3, Late()));
}

TEST_F(FenceArrayTest, IsNewAfterItWasCleared) {
  {
    Fence used = Must(array_->At(0));
    Must(used.SignalFromHost(9));
    Must(used.Abandon());
  }
  Must(array_->Clear(Late()));
  Fence again = Must(array_->At(0));
  EXPECT_EQ(Must(again.Query()), 0u);
  Must(again.SignalFromHost(1));
}

TEST_F(FenceArrayTest, WhoHasNotLookedIsRefusedAfterItDid) {
  const std::unique_ptr<FenceArray> other = Another();
  Fence ours = Must(array_->At(0));
  Fence theirs = Must(other->At(0));
  Must(theirs.SignalFromHost(4));
  Must(theirs.Abandon());
  const Stream stream;
  // Nobody was asked, so nothing is known; a wait is let go all the same.
  Must(ours.Wait(stream.get(), 5));
  stream.Sync();
  ExpectFails(absl::StatusCode::kAborted, ours.Query().status(),
              "abandoned at the value 4");
  ExpectFails(absl::StatusCode::kAborted, ours.Wait(stream.get(), 5),
              "abandoned at the value 4");
  ExpectFails(absl::StatusCode::kAborted, ours.Signal(stream.get(), 5),
              "abandoned at the value 4");
}

TEST_F(FenceArrayTest, ASignalOfWhoDoesNotKnowCountsAndItStaysAbandoned) {
  const std::unique_ptr<FenceArray> other = Another();
  Fence ours = Must(array_->At(0));
  Fence theirs = Must(other->At(0));
  Must(theirs.Abandon());
  const Stream stream;
  Must(ours.Signal(stream.get(), 6));
  stream.Sync();
  EXPECT_EQ(Raw(0), 6u) << "this test tests nothing";
  ExpectFails(absl::StatusCode::kAborted, theirs.Query().status(),
              "abandoned at the value 6");
  EXPECT_EQ(Raw(0), kEnd);
  ExpectFails(absl::StatusCode::kAborted, ours.SignalFromHost(7),
              "abandoned at the value 6");
}

TEST_F(FenceArrayTest, WhatIsNoValueIsDataLossAndStreamsCanBeLetGo) {
  Fence fence = Must(array_->At(0));
  const Stream stream;
  for (std::uint64_t nonsense : {kEnd, kEnd + 1, ~std::uint64_t{0}}) {
    Plant(0, nonsense);
    ExpectFails(absl::StatusCode::kDataLoss, fence.Query().status(),
                "no value that it can have");
    ExpectFails(absl::StatusCode::kDataLoss, fence.SignalFromHost(1), "wrote");
    ExpectFails(absl::StatusCode::kDataLoss, fence.WaitOnHost(1, Late()),
                "wrote");
  }
  Plant(0, (std::uint64_t{1} << 63) + 1);  // Less, as streams compare.
  Must(fence.Wait(stream.get(), 1));
  Must(fence.Abandon());
  stream.Sync();
  // What says where it came is as hostile.
  for (std::uint64_t nonsense : {kEnd + 1, ~std::uint64_t{0}}) {
    Plant(offsetof(fence::Words, abandoned), nonsense);
    ExpectFails(absl::StatusCode::kDataLoss, fence.Query().status(), "wrote");
  }
}

// The host asks a GPU whose streams all wait for what the host is to signal.
TEST_F(FenceArrayTest, TheHostIsAnsweredWhileStreamsWait) {
  Fence fence = Must(array_->At(0));
  const std::vector<Stream> streams(6);
  for (const Stream& stream : streams) Must(fence.Wait(stream.get(), 2));
  EXPECT_EQ(Must(fence.Query()), 0u);
  Must(fence.SignalFromHost(1));
  EXPECT_EQ(Must(fence.Query()), 1u);
  for (const Stream& stream : streams) EXPECT_FALSE(stream.IsIdle());
  Must(fence.Abandon());
}

TEST_F(FenceArrayTest, GoesWhileAStreamWaits) {
  const std::unique_ptr<FenceArray> other = Another();
  const Stream stream;
  {
    Fence gone = Must(array_->At(0));
    Must(gone.Wait(stream.get(), 1));
    array_.reset();
  }
  EXPECT_FALSE(stream.IsIdle());
  Must(Must(other->At(0)).SignalFromHost(1));
  stream.Sync();
}

TEST_F(FenceArrayTest, OutlivesTheArrayThatMadeIt) {
  Fence fence = Must(array_->At(0));
  array_.reset();
  Must(fence.SignalFromHost(1));
  EXPECT_EQ(Must(fence.Query()), 1u);
}

TEST_F(FenceArrayTest, WhatTheDriverRefusesIsTold) {
  DriverFaults faults;
  const platform::Driver failing = FaultyDriver(driver(), &faults);
  const std::unique_ptr<FenceArray> array = Must(FenceArray::Over(
      Must(Device::ByOrdinal(failing, 0)), memory_.address(), memory_.size()));
  Fence fence = Must(array->At(0));
  for (const char* entry : {"cuMemcpyDtoHAsync", "cuStreamQuery"}) {
    faults.Arm({.entry = entry, .result = CUDA_ERROR_INVALID_HANDLE});
    ExpectFails(absl::StatusCode::kInvalidArgument, fence.Query().status(),
                entry);
    EXPECT_EQ(faults.Disarm().fired, 1u);
    EXPECT_EQ(Must(fence.Query()), 0u) << "it must work again";
  }
  for (const char* entry : {"cuMemcpyDtoHAsync", "cuStreamWriteValue64"}) {
    faults.Arm({.entry = entry, .result = CUDA_ERROR_INVALID_HANDLE});
    ExpectFails(absl::StatusCode::kInvalidArgument, fence.SignalFromHost(1),
                entry);
    faults.Arm({.entry = entry, .result = CUDA_ERROR_INVALID_HANDLE});
    ExpectFails(absl::StatusCode::kInvalidArgument, fence.Abandon(), entry);
    EXPECT_EQ(faults.Disarm().fired, 1u);
  }
  EXPECT_EQ(Must(fence.Query()), 0u);
}

// By kernels: what loading and launching them answers.
TEST_F(FenceArrayTest, WhatIsRefusedOfKernelsIsTold) {
  DriverFaults faults;
  const platform::Driver failing = FaultyDriver(driver(), &faults);
  const Device where = Must(Device::ByOrdinal(failing, 0));
  const auto make = [&] {
    return FenceArray::Over(where, memory_.address(), memory_.size(),
                            FenceMechanism::kKernels);
  };
  // First, for it is loaded once in a process.
  faults.Arm(
      {.entry = "cuLibraryLoadData", .result = CUDA_ERROR_INVALID_HANDLE});
  ExpectFails(absl::StatusCode::kInvalidArgument, make().status(),
              "cuLibraryLoadData");
  EXPECT_EQ(faults.Disarm().fired, 1u);
  faults.Arm({.entry = "cuLibraryGetKernel",
              .result = CUDA_ERROR_UNSUPPORTED_PTX_VERSION});
  ExpectFails(
      absl::StatusCode::kUnimplemented, make().status(),
      "no machine code of vmmshare's kernels: it is older than they need");
  EXPECT_EQ(faults.Disarm().fired, 1u);
  for (const char* entry : {"cuLibraryGetKernel", "cuLaunchKernel"}) {
    faults.Arm({.entry = entry, .result = CUDA_ERROR_INVALID_HANDLE});
    ExpectFails(absl::StatusCode::kInvalidArgument, make().status(), entry);
    EXPECT_EQ(faults.Disarm().fired, 1u) << entry;
  }
  const std::unique_ptr<FenceArray> array = Must(make());
  Fence fences[] = {Must(array->At(0)), Must(array->At(1))};
  Fence* const own[] = {&fences[0]};
  Fence* const theirs[] = {&fences[1]};
  const Stream stream;
  faults.Arm({.entry = "cuLaunchKernel", .result = CUDA_ERROR_INVALID_HANDLE});
  ExpectFails(absl::StatusCode::kInvalidArgument,
              Fence::Meet(stream.get(), own, theirs, 1), "cuLaunchKernel");
  EXPECT_EQ(faults.Disarm().fired, 1u);
  EXPECT_TRUE(stream.IsIdle());
  // It was not signalled, and can be again.
  Must(Fence::Meet(stream.get(), own, theirs, 1));
  Must(fences[1].SignalFromHost(1));
  stream.Sync();
}

// Several that signal one fence and have no order between them.
TEST_F(FenceArrayTest, StreamsAddWithoutAnOrderBetweenThem) {
  constexpr std::uint64_t kAdds = 50;
  const std::unique_ptr<FenceArray> array = Must(FenceArray::Over(
      device, memory_.address(), memory_.size(), FenceMechanism::kKernels));
  const std::vector<Stream> streams(6);
  const Stream waiting;
  Fence sum = Must(array->At(5));
  Must(sum.Wait(waiting.get(), streams.size() * kAdds * 2));
  for (std::uint64_t i = 0; i < kAdds; ++i) {
    for (const Stream& stream : streams) {
      Must(Must(array->At(5)).Add(stream.get(), i % 2 == 0 ? 1 : 3));
    }
  }
  waiting.Sync();
  EXPECT_EQ(Must(sum.Query()), streams.size() * kAdds * 2);
  // As Signal(), it goes by what was seen.
  ExpectFails(absl::StatusCode::kInvalidArgument,
              sum.Add(waiting.get(), kMaxFenceValue), "a fence cannot have");
  ExpectFails(absl::StatusCode::kInvalidArgument, sum.Add(waiting.get(), 0),
              "cannot be signalled 0");
  ExpectFails(absl::StatusCode::kFailedPrecondition,
              Must(array_->At(5)).Add(waiting.get(), 1),
              "make its fence array one that has them");
  Must(sum.Abandon());
  ExpectFails(absl::StatusCode::kAborted, sum.Add(waiting.get(), 1),
              "abandoned at the value 600");
  // By who does not know: it stays abandoned.
  Must(Must(Must(FenceArray::Over(device, memory_.address(), memory_.size(),
                                  FenceMechanism::kKernels))
                ->At(5))
           .Add(waiting.get(), 7));
  waiting.Sync();
  ExpectFails(absl::StatusCode::kAborted, sum.Query().status(),
              "abandoned at the value 600");
}

// The kernel outlives the array, its fences and what loaded it.
TEST_F(FenceArrayTest, GoesWhileAKernelWaits) {
  const Stream stream;
  {
    const std::unique_ptr<FenceArray> by_kernels = Must(FenceArray::Over(
        device, memory_.address(), memory_.size(), FenceMechanism::kKernels));
    Must(Must(by_kernels->At(3)).Wait(stream.get(), 2));
  }
  EXPECT_FALSE(stream.IsIdle());
  Fence same = Must(array_->At(3));
  Must(same.SignalFromHost(1));
  EXPECT_FALSE(stream.IsIdle());
  Must(same.SignalFromHost(2));
  stream.Sync();
}

// A GPU that does not answer costs a caller its deadline and no more.
TEST_F(FenceArrayTest, ADeviceThatDoesNotAnswerIsADeadlineExceeded) {
  DriverFaults faults;
  const platform::Driver failing = FaultyDriver(driver(), &faults);
  const std::unique_ptr<FenceArray> array = Must(FenceArray::Over(
      Must(Device::ByOrdinal(failing, 0)), memory_.address(), memory_.size()));
  Fence fence = Must(array->At(0));
  faults.Arm({.point = {.times = FaultPoint::kForEver},
              .entry = "cuStreamQuery",
              .result = CUDA_ERROR_NOT_READY});
  const absl::Time deadline = absl::Now() + absl::Milliseconds(30);
  ExpectFails(absl::StatusCode::kDeadlineExceeded,
              fence.WaitOnHost(1, deadline), "has not answered");
  EXPECT_GE(absl::Now(), deadline);
  ExpectFails(absl::StatusCode::kDeadlineExceeded,
              fence.WaitOnHost(1, absl::InfinitePast()), "has not answered");
  EXPECT_GT(faults.Disarm().fired, 1u);
  EXPECT_EQ(Must(fence.Query()), 0u) << "it must work again";
}

// Who waits longer for such a GPU keeps nobody who does not.
TEST_F(FenceArrayTest, AnothersQuestionIsWaitedForNoLongerThanTheDeadline) {
  DriverFaults faults;
  const platform::Driver failing = FaultyDriver(driver(), &faults);
  const std::unique_ptr<FenceArray> array = Must(FenceArray::Over(
      Must(Device::ByOrdinal(failing, 0)), memory_.address(), memory_.size()));
  Fence fence = Must(array->At(0));
  faults.ResetCounts();
  faults.Arm({.point = {.times = FaultPoint::kForEver},
              .entry = "cuStreamQuery",
              .result = CUDA_ERROR_NOT_READY});
  std::thread other([&fence] { EXPECT_TRUE(fence.Query().ok()); });
  while (!faults.CallsByEntry().contains("cuStreamQuery")) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  const absl::Time start = absl::Now();
  ExpectFails(absl::StatusCode::kDeadlineExceeded,
              fence.WaitOnHost(1, start + absl::Milliseconds(30)),
              "has not answered");
  ExpectFails(absl::StatusCode::kDeadlineExceeded,
              array->Clear(start + absl::Milliseconds(30)), "has not answered");
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
  faults.Disarm();
  other.join();
  EXPECT_EQ(Must(fence.Query()), 0u) << "it must work again";
}

// The driver refuses to say whether what an array wrote is done, when the array
// goes. Its memory may be another's then.
int GoesWithWritesOnTheirWay(const std::vector<std::string>&) {
  const platform::Driver& driver = TestDriver();
  const Device device = FirstDevice();
  const PrimaryContext context = Must(PrimaryContext::Retain(device));
  const CurrentContext current = Must(context.MakeCurrent());
  const Allocation memory =
      Must(Allocation::Create(device, {.size = kGranule}));
  DriverFaults faults;
  const platform::Driver failing = FaultyDriver(driver, &faults);
  std::unique_ptr<FenceArray> array = Must(FenceArray::Over(
      Must(Device::ByOrdinal(failing, 0)), memory.address(), memory.size()));
  std::uint64_t word = 7;
  EXPECT_EQ(driver->cuMemcpyHtoD(memory.address(), &word, sizeof(word)),
            CUDA_SUCCESS);
  EXPECT_EQ(driver->cuCtxSynchronize(), CUDA_SUCCESS);
  faults.Arm({.point = {.times = FaultPoint::kForEver},
              .entry = "cuStreamQuery",
              .result = CUDA_ERROR_INVALID_HANDLE});
  EXPECT_TRUE(absl::IsInvalidArgument(array->Clear(Late())));
  array.reset();
  EXPECT_GE(faults.Disarm().fired, 2u);
  EXPECT_EQ(driver->cuMemcpyDtoH(&word, memory.address(), sizeof(word)),
            CUDA_SUCCESS);
  EXPECT_EQ(word, 0u);
  return ::testing::Test::HasFailure() ? 1 : 0;
}
const bool kGoesWithWritesOnTheirWay =
    RegisterChild("fence-array-goes", &GoesWithWritesOnTheirWay);

TEST_F(FenceArrayTest, GoesWhenItsWritesAreDoneThoughTheDriverDoesNotSaySo) {
  if (IsEmulated()) GTEST_SKIP() << kStartsNothing;
  Child late =
      Child::Start("fence-array-goes", {}, {{"VMMSHARE_HOST_DELAY", "100000"}});
  EXPECT_EQ(late.Wait(), 0);
}

TEST_F(FenceArrayTest, ServesAPeerDevice) {
  if (Peer() == nullptr) GTEST_SKIP() << "needs two devices";
  const Device& peer = *Peer();
  const PrimaryContext context = Must(PrimaryContext::Retain(peer));
  const Allocation memory = Must(Allocation::Create(
      device,
      {.size = kGranule, .also = {{Location::On(peer), Access::kReadWrite}}}));
  const std::unique_ptr<FenceArray> here =
      Must(FenceArray::Over(device, memory.address(), kGranule));
  const std::unique_ptr<FenceArray> there =
      Must(FenceArray::Over(peer, memory.address(), kGranule));
  Must(here->Clear(Late()));
  Fence ours = Must(here->At(0));
  Fence theirs = Must(there->At(0));
  const Stream stream;
  const CurrentContext current = Must(context.MakeCurrent());
  const Stream there_too;
  for (std::uint64_t i = 0; i < 40; i += 4) {
    Must(ours.Wait(stream.get(), i + 1));
    Must(ours.Signal(stream.get(), i + 2));
    Must(theirs.Wait(there_too.get(), i + 2));
    Must(theirs.Signal(there_too.get(), i + 3));
    Must(theirs.SignalFromHost(i + 1));
    Must(ours.WaitOnHost(i + 3, Late()));
    EXPECT_EQ(Must(theirs.Query()), i + 3);
    Must(ours.SignalFromHost(i + 4));
  }
  Must(theirs.Wait(there_too.get(), 1000));
  Must(ours.Abandon());
  there_too.Sync();
  EXPECT_EQ(theirs.Query().status().code(), absl::StatusCode::kAborted);
}

}  // namespace
}  // namespace vmm::testing
