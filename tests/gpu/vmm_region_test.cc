// A region whose memory is given back and comes back at the same addresses, all
// of it or nothing.
#include <gmock/gmock.h>

#include <atomic>
#include <cstdint>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "tests/gpu/fill_graph.h"
#include "tests/gpu/vmm_driver_test.h"
#include "tests/support/driver_faults.h"
#include "vmm/memory/allocation.h"
#include "vmm/memory/restorable_region.h"

namespace vmm::testing {
namespace {

using ::testing::HasSubstr;

class RegionTest : public DriverTest {
 protected:
  // Five allocations of different sizes, filled with 1, 2, ... 5.
  void FillFive(RestorableRegion& region) {
    for (std::uint64_t i = 1; i <= 5; ++i) {
      at_.push_back(Must(region.Allocate(i * kGranule - 100)));
      bytes_ += i * kGranule;
      Fill(at_.back(), static_cast<std::uint8_t>(i), i * kGranule - 100);
    }
  }
  void ExpectAllFive() {
    ASSERT_EQ(at_.size(), 5u);
    for (std::uint64_t i = 1; i <= 5; ++i) {
      EXPECT_TRUE(
          Holds(at_[i - 1], static_cast<std::uint8_t>(i), i * kGranule - 100));
    }
  }
  std::uint64_t FreeMemory() const {
    std::size_t free = 0;
    std::size_t total = 0;
    EXPECT_EQ(driver()->cuMemGetInfo(&free, &total), CUDA_SUCCESS);
    return free;
  }
  // Exactly on the host-memory driver; others use memory of their own meanwhile.
  void ExpectFree(std::uint64_t expected) const {
    const std::uint64_t free = FreeMemory();
    const std::uint64_t off =
        free < expected ? expected - free : free - expected;
    EXPECT_LE(off, OnHostMemoryDriver() ? 0 : kGranule) << free << " are free";
  }

  // A region whose driver fails the third call of `entry` that comes.
  RestorableRegion& Failing() {
    failing_.emplace(
        Must(Device::ByOrdinal(FaultyDriver(driver(), &faults_), 0)));
    return *failing_;
  }
  void FailThird(const std::string& entry,
                 CallKind calls = CallKind::kAcquire) {
    faults_.Arm({.point = {.nth = 2}, .calls = calls, .entry = entry});
  }

  std::vector<CUdeviceptr> at_;
  std::uint64_t bytes_ = 0;
  DriverFaults faults_;

 private:
  std::optional<RestorableRegion> failing_;
};

TEST_F(RegionTest, MovedKeepsItsMemoryAndWhatItWasMovedIntoGivesItsOwnBack) {
  RestorableRegion first(device);
  const CUdeviceptr at = Must(first.Allocate(kGranule));
  Fill(at, 7, 100);
  RestorableRegion moved(std::move(first));
  const std::uint64_t free = FreeMemory();
  RestorableRegion other(device);
  Must(other.Allocate(kGranule));
  other = std::move(moved);
  ExpectFree(free);
  EXPECT_EQ(other.statistics().bytes, kGranule);
  Must(other.Release(Keep::kHostMemory));
  Must(other.Restore());
  EXPECT_TRUE(Holds(at, 7, 100));
}

TEST_F(RegionTest, HasTheFlagForNetworkCardsAlsoWhenItIsBack) {
  const bool had =
      Must(Must(Allocation::Create(device, {.size = 1, .rdma = Rdma::kTry}))
               .IsRdmaCapable());
  for (const Rdma rdma : {Rdma::kOff, Rdma::kTry}) {
    RestorableRegion region(device, {.rdma = rdma});
    const CUdeviceptr at = Must(region.Allocate(kGranule));
    const auto is_capable = [&] {
      const OwnedMemoryHandle chunk = Must(RetainMemoryAt(driver(), at));
      CUmemAllocationProp properties{};
      EXPECT_EQ(driver()->cuMemGetAllocationPropertiesFromHandle(
                    &properties, chunk.get().handle),
                CUDA_SUCCESS);
      return properties.allocFlags.gpuDirectRDMACapable != 0;
    };
    EXPECT_EQ(is_capable(), had && rdma == Rdma::kTry);
    Must(region.Release(Keep::kNothing));
    Must(region.Restore());
    EXPECT_EQ(is_capable(), had && rdma == Rdma::kTry);
  }
}

TEST_F(RegionTest, ComesBackAtTheSameAddressesWithItsContents) {
  RestorableRegion region(device);
  const std::uint64_t empty = FreeMemory();
  FillFive(region);
  ExpectFree(empty - bytes_);
  for (int i = 0; i < 3; ++i) {
    Must(region.Release(Keep::kHostMemory));
    ExpectFree(empty);  // The device has all of it back.
    Must(region.Restore());
    ExpectFree(empty - bytes_);
    ExpectAllFive();
  }
}

TEST_F(RegionTest, TheAddressesStayReservedWhileItIsReleased) {
  RestorableRegion region(device);
  FillFive(region);
  Must(region.Release(Keep::kNothing));
  RestorableRegion other(device);
  for (int i = 0; i < 20; ++i) {
    const CUdeviceptr there = Must(other.Allocate(kGranule));
    for (std::size_t j = 0; j < 5; ++j) {
      EXPECT_FALSE(there >= at_[j] && there < at_[j] + (j + 1) * kGranule);
    }
  }
  Must(region.Restore());
}

TEST_F(RegionTest, KeepsNothingIfToldSo) {
  RestorableRegion region(device);
  FillFive(region);
  Must(region.Release(Keep::kNothing));
  EXPECT_EQ(region.statistics().kept, 0u);
  Must(region.Restore());
  FillFive(region);  // There is memory, to be filled anew.
  at_.erase(at_.begin(), at_.begin() + 5);
  ExpectAllFive();
  // What an earlier release kept does not come back later.
  Must(region.Release(Keep::kHostMemory));
  Must(region.Restore());
  Fill(at_[0], 9, kGranule);
  Must(region.Release(Keep::kNothing));
  Must(region.Restore());
  EXPECT_FALSE(Holds(at_[1], 2, kGranule));
}

TEST_F(RegionTest, ACapturedGraphReplaysAsBefore) {
  if (!FillGraph::Supported()) GTEST_SKIP() << "this driver has no graphs";
  RestorableRegion region(device);
  FillFive(region);
  FillGraph graph(at_[2], kGranule, 0x11);
  for (int i = 0; i < 2; ++i) {
    Must(region.Release(Keep::kHostMemory));
    Must(region.Restore());
    ExpectAllFive();
    graph.Replay();
    EXPECT_TRUE(Holds(at_[2], 0x11, kGranule));
    Fill(at_[2], 3, 3 * kGranule);
  }
}

TEST_F(RegionTest, WhatTheNodeNextToTheDeviceHasNoRoomForIsKeptElsewhere) {
  RestorableRegion& region = Failing();
  FillFive(region);
  FailThird("cuMemCreate");
  Must(region.Release(Keep::kHostMemory));
  EXPECT_EQ(faults_.Disarm().fired, 1u);
  EXPECT_EQ(region.statistics().kept, bytes_);
  Must(region.Restore());
  ExpectAllFive();
}

// cuMemFreeHost() waits for all work of the device.
TEST_F(RegionTest, WhatIsKeptGoesWithoutAWaitForTheDevice) {
  RestorableRegion& region = Failing();
  FillFive(region);
  Must(region.Release(Keep::kHostMemory));
  Must(region.Restore());
  ExpectAllFive();
  Must(region.Release(Keep::kHostMemory));
  region = RestorableRegion(device);
  EXPECT_EQ(faults_.CallsByEntry()["cuMemcpyDtoHAsync"], 10u);
  EXPECT_EQ(faults_.CallsByEntry()["cuMemFreeHost"], 0u);
}

TEST_F(RegionTest, AReleaseThatCannotCopyChangesNothing) {
  RestorableRegion& region = Failing();
  FillFive(region);
  const std::uint64_t before = FreeMemory();
  for (const char* entry :
       {"cuMemHostAlloc", "cuStreamCreate", "cuMemcpyDtoHAsync"}) {
    if (entry == std::string_view("cuMemHostAlloc")) {
      // Which is asked where the node next to the device has none.
      faults_.Arm({.point = {.nth = 2}, .entry = "cuMemCreate", .then = [&] {
                     faults_.Arm({.entry = entry});
                   }});
    } else {
      FailThird(entry);
    }
    const absl::Status released = region.Release(Keep::kHostMemory);
    EXPECT_EQ(faults_.Disarm().fired, 1u) << entry;
    EXPECT_TRUE(absl::IsResourceExhausted(released)) << released;
    EXPECT_THAT(std::string(released.message()),
                HasSubstr("Release of a region of 5 allocations, 31457280 "
                          "bytes: "));
    EXPECT_THAT(std::string(released.message()),
                HasSubstr("The region is as it was."));
    const RestorableRegionStatistics now = region.statistics();
    EXPECT_FALSE(now.is_released);
    EXPECT_EQ(now.kept, 0u);
    ExpectFree(before);
    ExpectAllFive();
  }
  Must(region.Release(Keep::kHostMemory));
  Must(region.Restore());
  ExpectAllFive();
}

TEST_F(RegionTest, ARestoreThatFailsLeavesAllOfItReleased) {
  RestorableRegion& region = Failing();
  FillFive(region);
  Must(region.Release(Keep::kHostMemory));
  const std::uint64_t before = FreeMemory();
  for (const char* entry : {"cuMemCreate", "cuMemMap", "cuMemSetAccess",
                            "cuStreamCreate", "cuMemcpyHtoDAsync"}) {
    FailThird(entry);
    const absl::Status restored = region.Restore();
    EXPECT_EQ(faults_.Disarm().fired, 1u) << entry;
    EXPECT_TRUE(absl::IsResourceExhausted(restored)) << restored;
    EXPECT_THAT(std::string(restored.message()),
                HasSubstr("Restore of a region of 5 allocations"));
    EXPECT_THAT(std::string(restored.message()),
                HasSubstr("The region is released as before."));
    const RestorableRegionStatistics now = region.statistics();
    EXPECT_TRUE(now.is_released);
    EXPECT_EQ(now.kept, bytes_);
    ExpectFree(before);  // What was made already is given back.
  }
  Must(region.Restore());
  ExpectAllFive();
}

TEST_F(RegionTest, ARestoreThatThrowsLeavesAllOfItReleased) {
  RestorableRegion& region = Failing();
  FillFive(region);
  Must(region.Release(Keep::kHostMemory));
  const std::uint64_t before = FreeMemory();
  faults_.Arm({.point = {.nth = 2}, .entry = "cuMemcpyHtoDAsync", .then = [] {
                 throw std::bad_alloc();
               }});
  EXPECT_THROW(region.Restore().IgnoreError(), std::bad_alloc);
  EXPECT_EQ(faults_.Disarm().fired, 1u);
  const RestorableRegionStatistics now = region.statistics();
  EXPECT_TRUE(now.is_released);
  EXPECT_EQ(now.kept, bytes_);
  ExpectFree(before);
  Must(region.Restore());
  ExpectAllFive();
}

TEST_F(RegionTest, AReleaseThatCannotUnmapSaysSoAndReleasesTheRest) {
  if (!OnHostMemoryDriver()) GTEST_SKIP() << "a real driver keeps the mapping";
  RestorableRegion& region = Failing();
  FillFive(region);
  faults_.Arm({.point = {.nth = 2},
               .calls = CallKind::kRelease,
               .entry = "cuMemUnmap",
               .effect = FaultEffect::kPerformedButReported});
  const absl::Status released = region.Release(Keep::kHostMemory);
  EXPECT_EQ(faults_.Disarm().fired, 1u);
  EXPECT_FALSE(released.ok());
  EXPECT_THAT(std::string(released.message()),
              HasSubstr("The region is released all the same."));
  EXPECT_TRUE(region.statistics().is_released);
  Must(region.Restore());
  ExpectAllFive();
}

TEST_F(RegionTest, ADeviceThatIsFullLeavesItReleased) {
  if (!OnHostMemoryDriver()) GTEST_SKIP() << "others may want its memory";
  RestorableRegion region(device);
  FillFive(region);
  Must(region.Release(Keep::kHostMemory));
  // Two and a half of the five would fit.
  std::optional<Allocation> rest =
      Must(Allocation::Create(device, {.size = FreeMemory() - 4 * kGranule}));
  const absl::Status full = region.Restore();
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  ExpectFree(4 * kGranule);
  rest.reset();
  Must(region.Restore());
  ExpectAllFive();
}

TEST_F(RegionTest, SaysWhatIsCalledOutOfTurn) {
  RestorableRegion region(device);
  FillFive(region);
  EXPECT_TRUE(absl::IsFailedPrecondition(region.Restore()));
  EXPECT_TRUE(absl::IsNotFound(region.Free(at_[0] + 1)));
  EXPECT_TRUE(absl::IsInvalidArgument(region.Allocate(0).status()));
  Must(region.Release(Keep::kNothing));
  EXPECT_TRUE(absl::IsFailedPrecondition(region.Release(Keep::kHostMemory)));
  const absl::Status asleep = region.Allocate(kGranule).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(asleep)) << asleep;
  EXPECT_THAT(std::string(asleep.message()), HasSubstr("Restore() it first"));
}

TEST_F(RegionTest, WhatIsFreedWhileItIsReleasedDoesNotComeBack) {
  RestorableRegion region(device);
  const std::uint64_t empty = FreeMemory();
  FillFive(region);
  Must(region.Release(Keep::kHostMemory));
  Must(region.Free(at_[4]));
  EXPECT_TRUE(absl::IsNotFound(region.Free(at_[4])));
  RestorableRegionStatistics now = region.statistics();
  EXPECT_EQ(now.allocations, 4u);
  EXPECT_EQ(now.bytes, 10 * kGranule);
  EXPECT_EQ(now.kept, 10 * kGranule);
  Must(region.Restore());
  ExpectFree(empty - 10 * kGranule);
  EXPECT_EQ(region.statistics().kept, 0u);
  for (std::uint64_t i = 1; i <= 4; ++i) {
    EXPECT_TRUE(Holds(at_[i - 1], static_cast<std::uint8_t>(i), kMiB));
    Must(region.Free(at_[i - 1]));
  }
  ExpectFree(empty);
}

TEST_F(RegionTest, OfNothingIsReleasedAndRestored) {
  RestorableRegion region(device);
  Must(region.Release(Keep::kHostMemory));
  Must(region.Restore());
  EXPECT_NE(Must(region.Allocate(1)), 0u);
  Must(region.Release(Keep::kHostMemory));
}  // Destroyed while it is released: the fixture sees what stays.

// What others allocate and free meanwhile is released with the rest, or told
// that it cannot be had.
TEST_F(RegionTest, IsReleasedAndRestoredWhileOthersAllocateAndFree) {
  RestorableRegion region(device);
  std::atomic<bool> ended = false;
  std::vector<std::thread> others;
  for (int i = 0; i < 3; ++i) {
    others.emplace_back([&] {
      while (!ended) {
        const absl::StatusOr<CUdeviceptr> made = region.Allocate(kGranule);
        if (made.ok()) {
          EXPECT_TRUE(region.Free(*made).ok());
        } else {
          EXPECT_TRUE(absl::IsFailedPrecondition(made.status()))
              << made.status();
        }
      }
    });
  }
  FillFive(region);
  for (int i = 0; i < 20; ++i) {
    Must(region.Release(Keep::kHostMemory));
    EXPECT_TRUE(region.statistics().is_released);
    Must(region.Restore());
  }
  ended = true;
  for (std::thread& other : others) other.join();
  ExpectAllFive();
  EXPECT_EQ(region.statistics().allocations, 5u);
}

}  // namespace
}  // namespace vmm::testing
