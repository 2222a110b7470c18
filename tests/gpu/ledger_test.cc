// The ledger and the sweep on a driver, without any of vmmshare's own objects:
// a seeded leak of a driver's handle turns both red.
#include "tests/support/ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/support/sweep.h"
#include "tests/support/test_driver.h"

namespace vmm::testing {
namespace {

using platform::Driver;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::size_t kSize = 2 << 20;

// Keeps the primary context of device 0, from which a real driver can be asked
// for the memory that is free.
class LedgerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(real_->cuDevicePrimaryCtxRetain(&context_, 0), CUDA_SUCCESS);
    // Taken once, so that what a first allocation costs a driver is not
    // mistaken for a leak.
    ASSERT_EQ(Share(/*forgets=*/false), absl::OkStatus());
  }
  void TearDown() override { real_->cuDevicePrimaryCtxRelease(0); }

  absl::Status Create(CUmemGenericAllocationHandle* handle) {
    CUmemAllocationProp properties = {};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    return driver_.Error(driver_->cuMemCreate(handle, kSize, &properties, 0),
                         "cuMemCreate(size=2097152, device=0)");
  }

  // Tells of a release that failed, as an owner's destructor does.
  void Release(CUresult result, const char* call) {
    platform::ReportReleaseFailure(driver_.Error(result, call));
  }

  // Creates two handles and maps the first; gives all of it back. If it
  // `forgets`, it leaks the first when making the second one fails.
  absl::Status Share(bool forgets) {
    CUmemGenericAllocationHandle first = 0, second = 0;
    absl::Status status = Create(&first);
    if (!status.ok()) return status;
    status = Create(&second);
    if (!status.ok()) {
      if (!forgets) Release(driver_->cuMemRelease(first), "cuMemRelease()");
      return status;
    }
    status = Map(first);
    Release(driver_->cuMemRelease(second), "cuMemRelease()");
    Release(driver_->cuMemRelease(first), "cuMemRelease()");
    return status;
  }

  absl::Status Map(CUmemGenericAllocationHandle handle) {
    CUdeviceptr at = 0;
    absl::Status status =
        driver_.Error(driver_->cuMemAddressReserve(&at, kSize, 0, 0, 0),
                      "cuMemAddressReserve(size=2097152)");
    if (!status.ok()) return status;
    status = driver_.Error(driver_->cuMemMap(at, kSize, 0, handle, 0),
                           "cuMemMap(size=2097152)");
    if (status.ok()) {
      CUmemAccessDesc access = {};
      access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
      access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
      status = driver_.Error(driver_->cuMemSetAccess(at, kSize, &access, 1),
                             "cuMemSetAccess(size=2097152, device=0)");
      Release(driver_->cuMemUnmap(at, kSize), "cuMemUnmap()");
    }
    // If memory is still mapped there, the driver refuses, which is told too.
    Release(driver_->cuMemAddressFree(at, kSize), "cuMemAddressFree()");
    return status;
  }

  const Driver real_ = TestDriver();
  DriverFaults faults_;
  const Driver driver_ = FaultyDriver(real_, &faults_);
  CUcontext context_ = nullptr;
};

TEST_F(LedgerTest, IsUnchangedWhenAllIsGivenBack) {
  const ExpectLedgerUnchanged ledger(real_);
  EXPECT_EQ(Share(/*forgets=*/false), absl::OkStatus());
}

TEST_F(LedgerTest, ASeededLeakTurnsItRed) {
  CUmemGenericAllocationHandle handle = 0;
  ::testing::TestPartResultArray failures;
  {
    ::testing::ScopedFakeTestPartResultReporter reporter(
        ::testing::ScopedFakeTestPartResultReporter::
            INTERCEPT_ONLY_CURRENT_THREAD,
        &failures);
    const ExpectLedgerUnchanged ledger(real_);
    EXPECT_EQ(Create(&handle), absl::OkStatus());
  }
  ASSERT_GT(failures.size(), 0);
  std::string messages;
  for (int i = 0; i < failures.size(); ++i) {
    messages += failures.GetTestPartResult(i).message();
  }
  EXPECT_THAT(messages,
              HasSubstr(OnHostMemoryDriver() ? "handles: 0 before, 1 after"
                                             : "free bytes of device 0"));
  EXPECT_EQ(real_->cuMemRelease(handle), CUDA_SUCCESS);
}

TEST_F(LedgerTest, AContextLeftCurrentTurnsItRed) {
  const Inventory before = TakeInventory(real_);
  ASSERT_EQ(real_->cuCtxPushCurrent(context_), CUDA_SUCCESS);
  EXPECT_THAT(Differences(before, TakeInventory(real_)),
              Contains(HasSubstr("current context")));
  CUcontext popped = nullptr;
  ASSERT_EQ(real_->cuCtxPopCurrent(&popped), CUDA_SUCCESS);
  EXPECT_THAT(Differences(before, TakeInventory(real_)), IsEmpty());
}

// Of two inventories as a client of MPS takes them.
TEST_F(LedgerTest, WhatMpsKeepsOfAClientIsNoLeakAndAGranuleIs) {
  const Inventory before = {{"free bytes of device 0", 64 << 20},
                            {"is a client of MPS", 1}};
  Inventory after = before;
  after["free bytes of device 0"] = (62 << 20) + 1;
  EXPECT_THAT(Differences(before, after), IsEmpty());
  after["free bytes of device 0"] = 62 << 20;
  EXPECT_THAT(Differences(before, after),
              Contains(HasSubstr("free bytes of device 0")));
  after["free bytes of device 0"] = 65 << 20;
  EXPECT_THAT(Differences(before, after), ::testing::IsEmpty());
  // Without MPS each byte counts, but what others gave back.
  EXPECT_THAT(Differences({{"free bytes of device 0", 64 << 20}},
                          {{"free bytes of device 0", (64 << 20) + 65536}}),
              ::testing::IsEmpty());
  EXPECT_THAT(Differences({{"free bytes of device 0", 64 << 20}},
                          {{"free bytes of device 0", (64 << 20) - 1}}),
              Contains(HasSubstr("free bytes of device 0")));
}

TEST_F(LedgerTest, ASweepOfBareDriverCallsPasses) {
  ExpectSwept({.name = "bare driver calls",
               .run = [this] { return Share(/*forgets=*/false); },
               .faults = &faults_});
}

TEST_F(LedgerTest, ASeededLeakTurnsASweepRed) {
  const SweepResult result =
      Sweep({.name = "bare driver calls, with a leak",
             .run = [this] { return Share(/*forgets=*/true); },
             .faults = &faults_});
  EXPECT_THAT(result.problems,
              Contains(AllOf(HasSubstr("cuMemCreate, call 1 refused once"),
                             HasSubstr("not as before"))));
}

}  // namespace
}  // namespace vmm::testing
