#include "tests/support/driver_faults.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <thread>
#include <vector>

#include "tests/unit/fake_driver.h"

namespace vmm::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class DriverFaultsTest : public ::testing::Test {
 protected:
  CUresult Create() {
    CUmemGenericAllocationHandle handle = 0;
    return driver_->cuMemCreate(&handle, 1 << 21, nullptr, 0);
  }

  platform::Driver real_ = LoadFakeDriver();
  DriverFaults faults_;
  platform::Driver driver_ = FaultyDriver(real_, &faults_);
};

TEST_F(DriverFaultsTest, PassesCallsOnWhileNothingIsArmed) {
  EXPECT_EQ(Create(), CUDA_SUCCESS);
  EXPECT_EQ(driver_->cuMemRelease(7), CUDA_SUCCESS);
  EXPECT_EQ(Fake().performed["cuMemCreate"], 1);
  EXPECT_EQ(Fake().performed["cuMemRelease"], 1);
}

TEST_F(DriverFaultsTest, CountsEveryCallByItsEntry) {
  EXPECT_EQ(faults_.calls(), 0u) << "loading is not counted";
  Create();
  Create();
  driver_->cuMemRelease(7);
  EXPECT_EQ(faults_.calls(), 3u);
  EXPECT_EQ(faults_.CallsByEntry()["cuMemCreate"], 2u);
  EXPECT_EQ(faults_.CallsByEntry()["cuMemRelease"], 1u);
  faults_.ResetCounts();
  EXPECT_EQ(faults_.calls(), 0u);
}

TEST_F(DriverFaultsTest, DoesNotCountTheTextOfAnError) {
  faults_.Arm({});
  const absl::Status status =
      driver_.Error(CUDA_ERROR_OUT_OF_MEMORY, "cuMemCreate(size=1)");
  EXPECT_THAT(status.message(), HasSubstr("CUDA_ERROR_OUT_OF_MEMORY"));
  EXPECT_EQ(faults_.Disarm().counted, 0u);
  EXPECT_EQ(faults_.calls(), 0u);
}

TEST_F(DriverFaultsTest, FailsTheNthCallOnceWithoutPerformingIt) {
  faults_.Arm({.point = {.nth = 1}, .result = CUDA_ERROR_NOT_PERMITTED});
  EXPECT_EQ(Create(), CUDA_SUCCESS);
  EXPECT_EQ(Create(), CUDA_ERROR_NOT_PERMITTED);
  EXPECT_EQ(Create(), CUDA_SUCCESS);
  const DriverFaults::Outcome outcome = faults_.Disarm();
  EXPECT_EQ(outcome.counted, 3u);
  EXPECT_EQ(outcome.fired, 1u);
  EXPECT_THAT(outcome.failed, ElementsAre("cuMemCreate"));
  EXPECT_EQ(Fake().performed["cuMemCreate"], 2);
}

TEST_F(DriverFaultsTest, FailsEveryCallFromTheNthOn) {
  faults_.Arm({.point = {.nth = 1, .times = FaultPoint::kForEver}});
  EXPECT_EQ(Create(), CUDA_SUCCESS);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(Create(), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(faults_.Disarm().fired, 5u);
  EXPECT_EQ(Create(), CUDA_SUCCESS);
}

TEST_F(DriverFaultsTest, CountsReleasesApartFromOtherCalls) {
  faults_.Arm({.calls = CallKind::kRelease});
  EXPECT_EQ(Create(), CUDA_SUCCESS);
  EXPECT_EQ(driver_->cuMemRelease(7), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(Fake().held["handles"], 1u);
  EXPECT_EQ(faults_.Disarm().counted, 1u);
}

TEST_F(DriverFaultsTest, CanPerformACallAndReportAnErrorAllTheSame) {
  Create();
  faults_.Arm({.calls = CallKind::kRelease,
               .result = CUDA_ERROR_ILLEGAL_ADDRESS,
               .effect = FaultEffect::kPerformedButReported});
  EXPECT_EQ(driver_->cuMemRelease(7), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(Fake().held["handles"], 0u);
}

TEST_F(DriverFaultsTest, CanFailOneEntryAlone) {
  faults_.Arm({.point = {.times = FaultPoint::kForEver}, .entry = "cuMemMap"});
  EXPECT_EQ(Create(), CUDA_SUCCESS);
  EXPECT_EQ(driver_->cuMemMap(0, 0, 0, 7, 0), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(faults_.Disarm().counted, 1u);
}

TEST_F(DriverFaultsTest, CanFailTheArmingThreadAlone) {
  faults_.Arm(
      {.point = {.times = FaultPoint::kForEver, .this_thread_only = true}});
  CUresult elsewhere = CUDA_ERROR_UNKNOWN;
  std::thread([&] { elsewhere = Create(); }).join();
  EXPECT_EQ(elsewhere, CUDA_SUCCESS);
  EXPECT_EQ(Create(), CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_F(DriverFaultsTest, FailsExactlyOneCallOfManyThreads) {
  faults_.Arm({.point = {.nth = 100}});
  std::vector<std::thread> threads;
  std::atomic<int> failed = 0;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int call = 0; call < 100; ++call) {
        // Harmless in any number of threads: it changes no counter.
        size_t free = 0, total = 0;
        if (driver_->cuMemGetInfo(&free, &total) != CUDA_SUCCESS) ++failed;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failed, 1);
  EXPECT_EQ(faults_.Disarm().counted, 400u);
  EXPECT_EQ(faults_.calls(), 400u);
}

TEST_F(DriverFaultsTest, LeavesAbsentEntriesAbsent) {
  EXPECT_EQ(driver_->cuLaunchKernel, nullptr);
  EXPECT_EQ(driver_.Need<&platform::DriverTable::cuLaunchKernel>().code(),
            absl::StatusCode::kUnimplemented);
  // Two entries share the name cuDeviceGetUuid; only the older is there.
  EXPECT_EQ(driver_->device_get_mig_uuid, nullptr);
  EXPECT_NE(driver_->device_get_gpu_uuid, nullptr);
}

TEST_F(DriverFaultsTest, PassesCallsOnWhenItsFaultsAreGone) {
  auto faults = std::make_unique<DriverFaults>();
  const platform::Driver driver = FaultyDriver(real_, faults.get());
  faults->Arm({.point = {.times = FaultPoint::kForEver}});
  faults.reset();
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_EQ(driver->cuMemCreate(&handle, 1, nullptr, 0), CUDA_SUCCESS);
}

TEST_F(DriverFaultsTest, CountsEveryEntryOfTheTableUnderItsOwnName) {
  int entries = 0;
  platform::ForEachDriverEntry([&](auto entry) {
    const auto thunk = driver_.table().*(entry.kMember);
    const auto behind = real_.table().*(entry.kMember);
    EXPECT_EQ(thunk == nullptr, behind == nullptr) << entry.name;
    if (thunk != nullptr) {
      EXPECT_NE(thunk, behind) << entry.name << " is not redirected";
    }
    ++entries;
  });
  EXPECT_GT(entries, 70);
}

TEST(DriverFaults, KeepsTheMarkOfTheHostMemoryDriver) {
  for (bool host_memory : {false, true}) {
    DriverFaults faults;
    const platform::Driver driver =
        FaultyDriver(LoadFakeDriver(host_memory), &faults);
    EXPECT_EQ(driver.is_host_memory(), host_memory);
    EXPECT_EQ(driver.version(), 13000);
  }
}

TEST(DriverFaults, TellsReleasesFromOtherCalls) {
  EXPECT_EQ(KindOfDriverCall("cuMemRelease"), CallKind::kRelease);
  EXPECT_EQ(KindOfDriverCall("cuMemUnmap"), CallKind::kRelease);
  EXPECT_EQ(KindOfDriverCall("cuMemAddressFree"), CallKind::kRelease);
  EXPECT_EQ(KindOfDriverCall("cuMemCreate"), CallKind::kAcquire);
  EXPECT_EQ(KindOfDriverCall("cuMemSetAccess"), CallKind::kAcquire);
}

TEST(DriverFaultsDeathTest, RefusesASecondRealDriverWhileTheFirstIsInUse) {
  EXPECT_DEATH(
      {
        DriverFaults faults;
        const platform::Driver one = FaultyDriver(LoadFakeDriver(), &faults);
        const platform::Driver two = FaultyDriver(LoadFakeDriver(), &faults);
      },
      "another real driver is still in use");
}

TEST(DriverFaultsDeathTest, RefusesASuccessAsAFault) {
  EXPECT_DEATH(DriverFaults().Arm({.result = CUDA_SUCCESS}),
               "must be an error");
}

}  // namespace
}  // namespace vmm::testing
