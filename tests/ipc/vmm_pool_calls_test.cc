// Sharing a block out of a warm pool calls no driver, on neither side.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <future>
#include <memory>

#include "absl/time/clock.h"
#include "tests/ipc/pool_both_sides.h"
#include "tests/support/driver_faults.h"

namespace vmm::testing {
namespace {

using PoolCalls = PoolIpcTest;

TEST_F(PoolCalls, SharingOutOfAWarmPoolCallsNoDriver) {
  DriverFaults faults;
  const platform::Driver counted = FaultyDriver(driver(), &faults);
  BothSides sides(counted, listener_directory());
  EXPECT_GT(faults.calls(), 10u) << "this driver does not count";
  faults.ResetCounts();
  ASSERT_TRUE(sides.ShareAll());
  ASSERT_TRUE(sides.FreeAll());
  ASSERT_TRUE(sides.TakeAll());
  ASSERT_TRUE(sides.ShareAll());
  EXPECT_EQ(faults.calls(), 0u)
      << ::testing::PrintToString(faults.CallsByEntry());
  // One call is seen.
  int count = 0;
  EXPECT_EQ(counted->cuDeviceGetCount(&count), CUDA_SUCCESS);
  EXPECT_EQ(faults.calls(), 1u);
}

// While a thread exports what a pool has, the pool may be used, and what is being
// exported stays.
TEST_F(PoolCalls, AreMadeWithoutTheLockWhenMemoryComesToBeServed) {
  if (IsTestOfLegacyIpc()) GTEST_SKIP() << "it is exported when it is made";
  DriverFaults faults;
  const platform::Driver counted = FaultyDriver(driver(), &faults);
  const std::unique_ptr<Pool> pool =
      Must(Pool::Create(Must(Device::ByOrdinal(counted, 0)), SmallSegments()));
  const CUdeviceptr first = Must(pool->Allocate(3 * kMiB, nullptr));
  CUdeviceptr second = 0;
  faults.ResetCounts();
  faults.Arm({.entry = "cuMemExportToShareableHandle", .then = [&] {
                Must(pool->Free(first, nullptr));
                EXPECT_EQ(Must(pool->Trim()), 0u);
                second = Must(pool->Allocate(5 * kMiB, nullptr));
              }});
  EXPECT_TRUE(absl::IsResourceExhausted(endpoint_->Serve(*pool).status()));
  EXPECT_EQ(faults.Disarm().fired, 1u);
  {
    // The segment of the attempt, and the one that came meanwhile.
    const Share share = Must(endpoint_->Serve(*pool));
    EXPECT_EQ(faults.CallsByEntry()["cuMemExportToShareableHandle"], 3u);
    Must(pool->CheckInvariants());
  }
  // Nothing of the attempt stays: not even that it is being exported.
  Must(pool->Free(second, nullptr));
  EXPECT_EQ(Must(pool->Trim()), 6 * kMiB);
}

// A subscriber that cannot follow for a moment has all segments as soon as it
// follows again, not when its session next looks after it, a second later.
TEST_F(PoolCalls, OfASubscriberThatLagsHoldUpItsSegmentsNoLongerThanItself) {
  if (IsTestOfLegacyIpc()) GTEST_SKIP() << "no segment is mapped";
  constexpr int kSegments = 24;  // More than may be on their way.
  const Share share = Serve();
  DriverFaults faults;
  const platform::Driver faulty = FaultyDriver(driver(), &faults);
  const std::unique_ptr<ImportedPool> imported =
      Must(ImportedPool::Subscribe(faulty, share.ticket(), {}, Late()));
  absl::Duration fastest = absl::InfiniteDuration();
  for (int round = 1; round <= 5; ++round) {
    std::promise<void> goes_on;
    // One segment cannot be mapped, and that takes long.
    faults.Arm({.entry = "cuMemImportFromShareableHandle",
                .then = [&] { goes_on.get_future().wait(); }});
    for (int i = 0; i < kSegments; ++i) Take(4 * kMiB);
    const absl::Time start = absl::Now();
    goes_on.set_value();
    ExpectSoon([&] {
      return imported->statistics().segments ==
             static_cast<std::size_t>(round * (kSegments - 1));
    });
    fastest = std::min(fastest, absl::Now() - start);
    EXPECT_EQ(faults.Disarm().fired, 1u);
  }
  EXPECT_LT(fastest, absl::Milliseconds(700));
}

}  // namespace
}  // namespace vmm::testing
