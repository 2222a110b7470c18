// vmm/weights/internal/memory_copy.h: whom it copies for, and how each call that
// the driver refuses is told.
#include <gmock/gmock.h>

#include <cstdint>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/gpu/stream.h"
#include "tests/gpu/vmm_driver_test.h"
#include "tests/support/driver_faults.h"
#include "tests/support/stderr_tap.h"
#include "vmm/memory/allocation.h"
#include "vmm/weights/internal/memory_copy.h"

namespace vmm::testing {
namespace {

using ::testing::HasSubstr;
using weights::DevicePiece;
using weights::MemoryCopy;

class MemoryCopyTest : public DriverTest {
 protected:
  MemoryCopyTest() {
    Fill(source_.address(), 0x5a, kGranule);
    Fill(memory_.address(), 0, kGranule);
  }
  absl::StatusOr<MemoryCopy> Open(const Allocation& memory) {
    return MemoryCopy::Open(faulty_, memory.address(), kGranule,
                            Access::kReadWrite);
  }
  // Makes the call with that entry refused.
  template <typename Call>
  void ExpectTold(const char* entry, const Call& call) {
    faults_.Arm({.entry = entry, .result = CUDA_ERROR_INVALID_HANDLE});
    const absl::Status status = call();
    EXPECT_EQ(faults_.Disarm().fired, 1u) << entry;
    EXPECT_EQ(platform::ResultOf(status), CUDA_ERROR_INVALID_HANDLE)
        << entry << ": " << status;
    EXPECT_THAT(status.message(), HasSubstr(entry));
  }

  DriverFaults faults_;
  const platform::Driver faulty_ = FaultyDriver(TestDriver(), &faults_);
  Allocation memory_ = Must(Allocation::Create(device, {.size = kGranule}));
  const Allocation source_ =
      Must(Allocation::Create(device, {.size = kGranule}));
  // Only the CPU may use it.
  const Allocation host_ = Must(Allocation::Create(
      device, {.size = kGranule,
               .host_numa_node = 0,
               .also = {{Location::HostNuma(0), Access::kReadWrite}}}));
};

TEST_F(MemoryCopyTest, OfNoBytesAsksTheDriverForNothing) {
  const MemoryCopy copy = Must(Open(memory_));
  faults_.ResetCounts();
  EXPECT_EQ(copy.Write(kGranule, {}), absl::OkStatus());
  EXPECT_EQ(copy.Read(kGranule, {}), absl::OkStatus());
  EXPECT_EQ(copy.WriteFrom(kGranule, 0, 0), absl::OkStatus());
  EXPECT_EQ(faults_.calls(), 0u);
}

TEST_F(MemoryCopyTest, IntoADevicesMemoryEachRefusedCallIsTold) {
  const MemoryCopy copy = Must(Open(memory_));
  std::vector<std::uint8_t> bytes(8, 1);
  ExpectTold("cuMemcpyHtoD", [&] { return copy.Write(0, bytes); });
  ExpectTold("cuMemcpyDtoH",
             [&] { return copy.Read(0, absl::MakeSpan(bytes)); });
  ExpectTold("cuMemcpyDtoD",
             [&] { return copy.WriteFrom(0, source_.address(), 8); });
  ExpectTold("cuCtxGetCurrent",
             [&] { return copy.WriteFrom(0, source_.address(), 8); });
  void* pinned = nullptr;
  ASSERT_EQ(driver()->cuMemHostAlloc(&pinned, 4096, 0), CUDA_SUCCESS);
  const std::vector<DevicePiece> pieces = {
      {memory_.address(), reinterpret_cast<CUdeviceptr>(pinned), 8}};
  ExpectTold("cuMemcpyDtoDAsync", [&] {
    return copy.WriteAllFrom(pieces, nullptr, /*are_own=*/false);
  });
  EXPECT_TRUE(Holds(memory_.address(), 0, kGranule));
  EXPECT_EQ(driver()->cuMemFreeHost(pinned), CUDA_SUCCESS);
}

TEST_F(MemoryCopyTest, IntoMemoryOfTheHostEachRefusedCallIsTold) {
  const MemoryCopy copy = Must(Open(host_));
  ASSERT_NE(copy.on_host(), nullptr);
  const auto write = [&] { return copy.WriteFrom(0, source_.address(), 8); };
  ExpectTold("cuCtxGetCurrent", write);
  ExpectTold("cuMemcpyDtoH", write);
  const Stream stream;
  const std::vector<DevicePiece> pieces = {
      {host_.address(), source_.address(), 8}};
  ExpectTold("cuStreamSynchronize", [&] {
    return copy.WriteAllFrom(pieces, stream.get(), /*are_own=*/true);
  });
  EXPECT_EQ(copy.on_host()[0], 0);
  EXPECT_EQ(copy.WriteAllFrom(pieces, stream.get(), /*are_own=*/true),
            absl::OkStatus());
  EXPECT_EQ(copy.on_host()[7], 0x5a);
}

TEST_F(MemoryCopyTest, OfMemoryThatNobodyMapsNeedsACurrentContext) {
  Must(memory_.SetAccess({{Location::On(device), Access::kNone}}));
  EXPECT_EQ(Open(memory_).status(), absl::OkStatus());
  ExpectTold("cuCtxGetCurrent", [&] { return Open(memory_).status(); });
  std::thread([&] {
    const absl::Status refused = Open(memory_).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_THAT(refused.message(), HasSubstr("is mapped for no device"));
  }).join();
}

TEST_F(MemoryCopyTest, WhatAStageCannotFinishWhenItGoesIsReported) {
  const MemoryCopy copy = Must(Open(memory_));
  BeginTap("stage");
  {
    MemoryCopy::Stage stage = copy.MakeStage();
    Must(stage.Next())[0] = 7;
    EXPECT_EQ(copy.WriteStaged(0, stage, 1), absl::OkStatus());
    faults_.Arm(
        {.entry = "cuEventQuery", .result = CUDA_ERROR_ILLEGAL_ADDRESS});
  }
  EXPECT_EQ(faults_.Disarm().fired, 1u);
  const std::vector<std::string> reports = EndTap();
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_THAT(reports[0], HasSubstr("cuEventQuery"));
}

}  // namespace
}  // namespace vmm::testing
