// vmm/pool/internal/points.h: what is asked of the GPU for a pool, and how what
// the driver cannot say is told.
#include <gmock/gmock.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "platform/cuda/driver_table.h"
#include "tests/gpu/changed_driver.h"
#include "tests/gpu/held_stream.h"
#include "tests/gpu/stream.h"
#include "tests/gpu/vmm_driver_test.h"
#include "tests/support/driver_faults.h"
#include "vmm/pool/internal/backlog.h"
#include "vmm/pool/internal/offset_heap.h"
#include "vmm/pool/internal/points.h"

namespace vmm::testing {
namespace {

using ::testing::HasSubstr;

// A block that was freed on a stream.
class Freed {
 public:
  explicit Freed(CUstream stream) : backlog(stream, /*first_epoch=*/1) {
    block_.size = pool::OffsetHeap::kGranule;
    block_.address = CUdeviceptr{1} << 40;
    backlog.Add(&block_, backlog.open_epoch());
  }

 private:
  pool::Block block_;

 public:
  pool::Backlog backlog;
};

class PoolPointsTest : public DriverTest {
 protected:
  void SetUp() override {
    if (!driver().Need<&platform::DriverTable::cuStreamWaitValue64>().ok()) {
      GTEST_SKIP() << "this driver cannot hold a stream";
    }
  }
  // Fails the call once, asks, and looks at what was said.
  void ExpectToldAndUnknown(pool::Backlog& backlog, const std::string& entry,
                            CUresult result) {
    faults_.Arm(
        {.calls = KindOfDriverCall(entry), .entry = entry, .result = result});
    pool::Inquiry inquiry(backlog);
    inquiry.Ask(faulty_, nullptr);
    EXPECT_EQ(faults_.Disarm().fired, 1u) << entry;
    EXPECT_EQ(inquiry.passed(), 0u);
    EXPECT_EQ(platform::ResultOf(inquiry.error()), result)
        << entry << ": " << inquiry.error();
    EXPECT_THAT(inquiry.error().message(), HasSubstr(entry));
    inquiry.End();
  }
  std::uint64_t Ask(pool::Backlog& backlog) {
    pool::Inquiry inquiry(backlog);
    inquiry.Ask(faulty_, nullptr);
    EXPECT_EQ(inquiry.error(), absl::OkStatus());
    inquiry.End();
    return inquiry.passed();
  }

  DriverFaults faults_;
  const Device faulty_ =
      Must(Device::ByOrdinal(FaultyDriver(TestDriver(), &faults_), 0));
};

TEST_F(PoolPointsTest, ABusyStreamIsKnownOnceItsPointIsPassed) {
  HeldStream held(device);
  Freed freed(held.get());
  EXPECT_EQ(Ask(freed.backlog), 0u);
  ASSERT_EQ(freed.backlog.points.size(), 1u);
  EXPECT_EQ(Ask(freed.backlog), 0u);  // Its point says the same.
  EXPECT_EQ(freed.backlog.points.size(), 1u);
  held.Release();
  EXPECT_EQ(driver()->cuStreamSynchronize(held.get()), CUDA_SUCCESS);
  EXPECT_NE(Ask(freed.backlog), 0u);
  EXPECT_TRUE(freed.backlog.points.empty());
}

TEST_F(PoolPointsTest, WhatTheDriverCannotSayIsToldAndAskedAgain) {
  HeldStream held(device);
  Freed freed(held.get());
  ExpectToldAndUnknown(freed.backlog, "cuStreamIsCapturing",
                       CUDA_ERROR_INVALID_HANDLE);
  ExpectToldAndUnknown(freed.backlog, "cuStreamQuery",
                       CUDA_ERROR_ILLEGAL_ADDRESS);
  ExpectToldAndUnknown(freed.backlog, "cuEventCreate",
                       CUDA_ERROR_OUT_OF_MEMORY);
  ExpectToldAndUnknown(freed.backlog, "cuEventRecord",
                       CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_TRUE(freed.backlog.points.empty());
  EXPECT_EQ(Ask(freed.backlog), 0u);
  ExpectToldAndUnknown(freed.backlog, "cuEventQuery",
                       CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(freed.backlog.points.size(), 1u);
  held.Release();
  EXPECT_EQ(driver()->cuStreamSynchronize(held.get()), CUDA_SUCCESS);
  EXPECT_NE(Ask(freed.backlog), 0u);
}

// It was recorded as the capture began, and says nothing of the stream's work.
TEST_F(PoolPointsTest, APointInACaptureIsForgotten) {
  HeldStream held(device);
  Freed freed(held.get());
  EXPECT_EQ(Ask(freed.backlog), 0u);
  ASSERT_EQ(freed.backlog.points.size(), 1u);
  faults_.Arm({.entry = "cuEventQuery", .result = CUDA_ERROR_CAPTURED_EVENT});
  EXPECT_EQ(Ask(freed.backlog), 0u);
  EXPECT_EQ(faults_.Disarm().fired, 1u);
  EXPECT_TRUE(freed.backlog.points.empty());
  held.Release();
}

TEST_F(PoolPointsTest, AWaitThatCannotBeMadeIsToldByItsCall) {
  HeldStream held(device);
  Freed freed(held.get());
  const Stream waits;
  for (const char* entry :
       {"cuStreamIsCapturing", "cuEventRecord", "cuStreamWaitEvent"}) {
    pool::Inquiry inquiry(freed.backlog);
    faults_.Arm({.calls = KindOfDriverCall(entry),
                 .entry = entry,
                 .result = CUDA_ERROR_INVALID_HANDLE});
    const absl::StatusOr<bool> made =
        inquiry.MakeWait(faulty_, nullptr, waits.get());
    EXPECT_EQ(faults_.Disarm().fired, 1u) << entry;
    EXPECT_EQ(platform::ResultOf(made.status()), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_THAT(made.status().message(), HasSubstr(entry));
    inquiry.End();
  }
  EXPECT_TRUE(waits.IsIdle());
  pool::Inquiry inquiry(freed.backlog);
  EXPECT_TRUE(Must(inquiry.MakeWait(faulty_, nullptr, waits.get())));
  inquiry.End();
  EXPECT_FALSE(waits.IsIdle());
  held.Release();
}

// Of the null stream. What is said of the primary context.
CUresult state = CUDA_SUCCESS;

TEST_F(PoolPointsTest, WithoutAContextNothingIsOnTheDefaultStream) {
  platform::DriverTable table = TestDriver().table();
  table.cuCtxGetCurrent = [](CUcontext* current) {
    *current = nullptr;
    return CUDA_SUCCESS;
  };
  table.cuDevicePrimaryCtxGetState = [](CUdevice, unsigned*, int* active) {
    *active = 0;
    return state;
  };
  const Device bare = Must(Device::ByOrdinal(ChangedDriver(table), 0));
  Freed freed(nullptr);
  const auto ask = [&] {
    pool::Inquiry inquiry(freed.backlog);
    inquiry.Ask(bare, nullptr);
    inquiry.End();
    return std::pair(inquiry.passed() == inquiry.epoch(), inquiry.error());
  };
  EXPECT_EQ(ask(), std::pair(true, absl::OkStatus()));
  state = CUDA_ERROR_INVALID_DEVICE;
  const auto [passed, error] = ask();
  state = CUDA_SUCCESS;
  EXPECT_FALSE(passed);
  EXPECT_EQ(platform::ResultOf(error), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_THAT(error.message(), HasSubstr("cuDevicePrimaryCtxGetState"));
}

}  // namespace
}  // namespace vmm::testing
