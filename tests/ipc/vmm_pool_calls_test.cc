// Sharing a block out of a warm pool calls no driver, on neither side.
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace vmm::testing
