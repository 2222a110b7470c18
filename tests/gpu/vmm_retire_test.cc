#include <gmock/gmock.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "tests/gpu/held_stream.h"
#include "tests/gpu/vmm_driver_test.h"
#include "tests/support/driver_faults.h"
#include "vmm/memory/allocation.h"
#include "vmm/share/imported_allocation.h"
#include "vmm/share/internal/protocol.h"
#include "vmm/share/retire.h"
#include "vmm/share/transfer.h"

namespace vmm::testing {
namespace {

using platform::DriverTable;
using ::testing::HasSubstr;

class RetireTest : public DriverTest {
 protected:
  void SetUp() override {
    if (!driver().Need<&DriverTable::cuStreamWaitValue64>().ok()) {
      GTEST_SKIP() << "this driver cannot hold a stream";
    }
  }
  Allocation Make() {
    return Must(Allocation::Create(device, {.size = kGranule}));
  }
  bool IsMapped(CUdeviceptr address) {
    unsigned long long flags = 0;
    const CUmemLocation location = Location::On(device).ToCuda();
    return driver()->cuMemGetAccess(&flags, &location, address) == CUDA_SUCCESS;
  }
};

TEST_F(RetireTest, MemoryStaysWhileTheStreamWorks) {
  HeldStream stream(device);
  RetireQueue queue(driver());
  Allocation memory = Make();
  const CUdeviceptr address = memory.address();
  ASSERT_EQ(driver()->cuMemsetD8Async(address, 0x12, kGranule, stream.get()),
            CUDA_SUCCESS);
  ASSERT_TRUE(queue.Retire(std::move(memory), stream.get()).ok());
  EXPECT_EQ(queue.size(), 1u);
  EXPECT_EQ(Must(queue.Collect()), 0u);
  EXPECT_TRUE(IsMapped(address));
  stream.Release();
  ASSERT_EQ(driver()->cuStreamSynchronize(stream.get()), CUDA_SUCCESS);
  EXPECT_TRUE(IsMapped(address)) << "nobody has collected yet";
  EXPECT_EQ(Must(queue.Collect()), 1u);
  EXPECT_EQ(queue.size(), 0u);
  EXPECT_FALSE(IsMapped(address));
}

TEST_F(RetireTest, EveryKindOfMemoryCanBeRetired) {
  HeldStream stream(device);
  RetireQueue queue(driver());
  Allocation memory = Make();
  const protocol::Outgoing out =
      Must(protocol::MakeOutgoing(memory.shareable()));
  std::vector<ExportedHandle> handles;
  handles.push_back(Must(out.handle(0)));
  ImportedAllocation imported =
      Must(ImportedAllocation::Open(driver(), out.ticket, handles, {}));
  auto range = std::make_shared<AddressRange>(
      Must(AddressRange::Reserve(driver(), kGranule)));
  auto physical = std::make_shared<PhysicalMemory>(Must(PhysicalMemory::Create(
      driver(), Location::On(device), {kGranule, kGranule}, {})));
  Mapping mapping = Must(Mapping::Map(range, 0, physical));
  const CUdeviceptr addresses[] = {memory.address(), imported.address(),
                                   mapping.address()};
  ASSERT_TRUE(queue.Retire(std::move(memory), stream.get()).ok());
  ASSERT_TRUE(queue.Retire(std::move(imported), stream.get()).ok());
  ASSERT_TRUE(queue.Retire(std::move(mapping), stream.get()).ok());
  EXPECT_EQ(queue.size(), 3u);
  for (CUdeviceptr address : addresses) EXPECT_TRUE(IsMapped(address));
  stream.Release();
  EXPECT_TRUE(queue.Drain(Late()).ok());
  for (CUdeviceptr address : addresses) EXPECT_FALSE(IsMapped(address));
}

TEST_F(RetireTest, StreamsPassInAnyOrder) {
  HeldStream slow(device);
  HeldStream fast(device);
  RetireQueue queue(driver());
  Allocation first = Make();
  const CUdeviceptr kept = first.address();
  ASSERT_TRUE(queue.Retire(std::move(first), slow.get()).ok());
  ASSERT_TRUE(queue.Retire(Make(), fast.get()).ok());
  fast.Release();
  ASSERT_EQ(driver()->cuStreamSynchronize(fast.get()), CUDA_SUCCESS);
  EXPECT_EQ(Must(queue.Collect()), 1u);
  EXPECT_EQ(queue.size(), 1u);
  EXPECT_TRUE(IsMapped(kept));
  slow.Release();
  EXPECT_TRUE(queue.Drain(Late()).ok());
}

TEST_F(RetireTest, DrainGivesUpAtItsDeadlineAndKeepsTheMemory) {
  HeldStream stream(device);
  RetireQueue queue(driver());
  ASSERT_TRUE(queue.Retire(Make(), stream.get()).ok());
  ASSERT_TRUE(queue.Retire(Make(), stream.get()).ok());
  const absl::Time begun = absl::Now();
  const absl::Status status = queue.Drain(begun + absl::Milliseconds(30));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("2 retired"));
  EXPECT_GE(absl::Now() - begun, absl::Milliseconds(30));
  EXPECT_EQ(queue.size(), 2u);
  stream.Release();
  EXPECT_TRUE(queue.Drain(Late()).ok());
}

TEST_F(RetireTest, DrainOfNothingDoesNotWait) {
  RetireQueue queue(driver());
  EXPECT_TRUE(queue.Drain(absl::InfinitePast()).ok());
  EXPECT_EQ(Must(queue.Collect()), 0u);
}

TEST_F(RetireTest, AFailureLeavesTheMemoryWithTheCaller) {
  HeldStream stream(device);
  DriverFaults faults;
  const platform::Driver faulty = FaultyDriver(driver(), &faults);
  RetireQueue queue(faulty);
  Allocation memory = Make();
  const CUdeviceptr address = memory.address();
  for (const char* entry : {"cuStreamGetCtx", "cuCtxPushCurrent",
                            "cuEventCreate", "cuEventRecord"}) {
    faults.Arm({.point = {.nth = 0},
                .entry = entry,
                .result = CUDA_ERROR_OUT_OF_MEMORY});
    const absl::Status status = queue.Retire(std::move(memory), stream.get());
    EXPECT_EQ(faults.Disarm().fired, 1u) << entry;
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << entry << status;
    EXPECT_EQ(queue.size(), 0u);
    EXPECT_TRUE(IsMapped(address));
  }
  stream.Release();
  EXPECT_TRUE(memory.is_mapped());
  EXPECT_EQ(memory.address(), address);
  Fill(address, 1, kGranule);
}

TEST_F(RetireTest, WithoutAContextTheMemoryStaysWithTheCaller) {
  RetireQueue queue(driver());
  Allocation memory = Make();
  CUcontext current = nullptr;
  ASSERT_EQ(driver()->cuCtxGetCurrent(&current), CUDA_SUCCESS);
  ASSERT_EQ(driver()->cuCtxSetCurrent(nullptr), CUDA_SUCCESS);
  const absl::Status status = queue.Retire(std::move(memory), nullptr);
  EXPECT_EQ(driver()->cuCtxSetCurrent(current), CUDA_SUCCESS);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_TRUE(memory.is_mapped());
  EXPECT_TRUE(queue.Retire(std::move(memory), nullptr).ok())
      << "null is the current context's default stream";
  EXPECT_TRUE(queue.Drain(Late()).ok());
}

TEST_F(RetireTest, AStreamOfNoCurrentContextCanBeRetiredTo) {
  HeldStream stream(device);
  RetireQueue queue(driver());
  CUcontext current = nullptr;
  ASSERT_EQ(driver()->cuCtxGetCurrent(&current), CUDA_SUCCESS);
  ASSERT_EQ(driver()->cuCtxSetCurrent(nullptr), CUDA_SUCCESS);
  EXPECT_TRUE(queue.Retire(Make(), stream.get()).ok());
  EXPECT_EQ(Must(queue.Collect()), 0u);
  EXPECT_EQ(driver()->cuCtxSetCurrent(current), CUDA_SUCCESS);
  stream.Release();
  EXPECT_TRUE(queue.Drain(Late()).ok());
}

TEST_F(RetireTest, WorkThatFailedKeepsTheMemory) {
  DriverFaults faults;
  const platform::Driver faulty = FaultyDriver(driver(), &faults);
  RetireQueue queue(faulty);
  ASSERT_TRUE(queue.Retire(Make(), nullptr).ok());
  faults.Arm({.point = {.nth = 0},
              .entry = "cuEventQuery",
              .result = CUDA_ERROR_ILLEGAL_ADDRESS});
  const absl::Status status = queue.Drain(Late());
  EXPECT_EQ(faults.Disarm().fired, 1u);
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr("the memory is kept"));
  EXPECT_EQ(queue.size(), 1u);
  EXPECT_TRUE(queue.Drain(Late()).ok());
}

// As one of another device, whose context has ended by a fault.
TEST_F(RetireTest, WorkThatFailedKeepsNoMemoryOfOtherStreams) {
  DriverFaults faults;
  const platform::Driver faulty = FaultyDriver(driver(), &faults);
  RetireQueue queue(faulty);
  Allocation first = Make();
  Allocation second = Make();
  const CUdeviceptr kept = first.address();
  const CUdeviceptr passed = second.address();
  Must(queue.Retire(std::move(first), nullptr));
  Must(queue.Retire(std::move(second), nullptr));
  ASSERT_EQ(driver()->cuCtxSynchronize(), CUDA_SUCCESS);
  faults.Arm({.point = {.nth = 0},
              .entry = "cuEventQuery",
              .result = CUDA_ERROR_ILLEGAL_ADDRESS});
  const absl::Status status = queue.Collect().status();
  EXPECT_EQ(faults.Disarm().fired, 1u);
  EXPECT_EQ(platform::ResultOf(status), CUDA_ERROR_ILLEGAL_ADDRESS) << status;
  EXPECT_EQ(queue.size(), 1u);
  EXPECT_TRUE(IsMapped(kept));
  EXPECT_FALSE(IsMapped(passed));
  Must(queue.Drain(Late()));
}

TEST_F(RetireTest, DrainWaitsForOthersThanThoseWhoseWorkFailed) {
  HeldStream stream(device);
  DriverFaults faults;
  const platform::Driver faulty = FaultyDriver(driver(), &faults);
  RetireQueue queue(faulty);
  Must(queue.Retire(Make(), nullptr));
  Must(queue.Retire(Make(), stream.get()));
  faults.Arm({.point = {.nth = 0},
              .entry = "cuEventQuery",
              .result = CUDA_ERROR_ILLEGAL_ADDRESS});
  const absl::Status status = queue.Drain(absl::InfinitePast());
  EXPECT_EQ(faults.Disarm().fired, 1u);
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("1 retired"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("the memory is kept"));
  EXPECT_EQ(queue.size(), 2u);
  stream.Release();
  Must(queue.Drain(Late()));
}

TEST_F(RetireTest, MovedTakesWhatItHolds) {
  HeldStream stream(device);
  RetireQueue queue(driver());
  ASSERT_TRUE(queue.Retire(Make(), stream.get()).ok());
  RetireQueue moved = std::move(queue);
  EXPECT_EQ(moved.size(), 1u);
  stream.Release();
  EXPECT_TRUE(moved.Drain(Late()).ok());
}

class Pitfall21 : public RetireTest {};
TEST_F(Pitfall21, RetiredMemoryIsUnmappedOnlyAfterTheWorkThatUsesIt) {
  HeldStream stream(device);
  CUdeviceptr address = 0;
  std::atomic<bool> destroyed{false};
  std::thread destroyer;
  {
    auto queue = std::make_unique<RetireQueue>(driver());
    Allocation memory = Make();
    address = memory.address();
    ASSERT_EQ(driver()->cuMemsetD8Async(address, 1, kGranule, stream.get()),
              CUDA_SUCCESS);
    ASSERT_TRUE(queue->Retire(std::move(memory), stream.get()).ok());
    // The destructor waits for the stream, however long.
    destroyer = std::thread([&destroyed, q = std::move(queue)]() mutable {
      q.reset();
      destroyed = true;
    });
  }
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(IsMapped(address));
    EXPECT_FALSE(destroyed);
    std::this_thread::yield();
  }
  stream.Release();
  destroyer.join();
  EXPECT_TRUE(destroyed);
  EXPECT_FALSE(IsMapped(address));
  EXPECT_EQ(driver()->cuStreamSynchronize(stream.get()), CUDA_SUCCESS);
}

class Pitfall30 : public RetireTest {};
TEST_F(Pitfall30, MemoryCanBeReleasedOnAThreadWithoutAContext) {
  std::thread([memory = Make()]() mutable {
    const Allocation gone = std::move(memory);
    static_cast<void>(gone);
  }).join();
}

}  // namespace
}  // namespace vmm::testing
