// Tensor sets that come from files while the device is behind.
#include <gmock/gmock.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/gpu/changed_driver.h"
#include "tests/gpu/held_stream.h"
#include "tests/gpu/loaded_kernel.h"
#include "tests/gpu/stream.h"
#include "tests/gpu/vmm_driver_test.h"
#include "tests/support/driver_faults.h"
#include "tests/support/private_directory.h"
#include "vmm/weights/internal/staging.h"
#include "vmm/weights/tensor_set.h"

namespace vmm::testing {
namespace {

using weights::kPiece;

class WeightsFilesTest : LoadedKernel, public DriverTest {
 protected:
  static constexpr std::uint64_t kTensors = 6;

  WeightsFilesTest() : bytes_(kTensors * kPiece, '\0') {
    std::uint32_t state = 1;
    for (char& byte : bytes_) {
      state = state * 1664525u + 1013904223u;
      byte = static_cast<char>(state >> 24);
    }
    std::ofstream(path_, std::ios::binary) << bytes_;
    for (std::uint64_t i = 0; i < kTensors; ++i) {
      const std::size_t place = Must(layout_.Add(
          absl::StrCat(i), DType::kUInt8, {static_cast<std::int64_t>(kPiece)}));
      reads_.push_back({place, 0, {i * kPiece, kPiece, kPiece}});
    }
    memory_ = Must(Allocation::Create(device, {.size = layout_.size()}));
    context_ = Must(PrimaryContext::Retain(device));
    current_.emplace(Must(context_->MakeCurrent()));
  }

  // Has read once: what a driver loads and pins for it, it cannot have while a
  // stream waits.
  TensorSetWriter BeginAnew(const platform::Driver& driver) {
    TensorSetWriter writer = Must(TensorSetWriter::Begin(
        driver, memory_->address(), memory_->requested_size(), layout_));
    Must(writer.ReadFiles({path_}, reads_, {.threads = 1}));
    EXPECT_EQ(driver->cuMemsetD8(memory_->address(), 0xee, memory_->size()),
              CUDA_SUCCESS);
    EXPECT_EQ(driver->cuStreamSynchronize(nullptr), CUDA_SUCCESS);
    return writer;
  }
  // The default stream stands still until `held` is released.
  void HoldDefaultStream(const HeldStream& held) {
    CUevent event = nullptr;
    EXPECT_EQ(driver()->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING),
              CUDA_SUCCESS);
    EXPECT_EQ(driver()->cuEventRecord(event, held.get()), CUDA_SUCCESS);
    EXPECT_EQ(driver()->cuStreamWaitEvent(nullptr, event, 0), CUDA_SUCCESS);
    EXPECT_EQ(driver()->cuEventDestroy(event), CUDA_SUCCESS);
  }
  std::string Copied() {
    std::string copied(bytes_.size(), '\0');
    EXPECT_EQ(driver()->cuMemcpyDtoH(copied.data(), memory_->address(),
                                     copied.size()),
              CUDA_SUCCESS);
    return copied;
  }

  const PrivateDirectory directory_;
  const std::string path_ = directory_.path() + "/weights";
  std::string bytes_;
  TensorLayout layout_{TensorSetNotes{}};
  std::vector<TensorSetWriter::FileRead> reads_;
  std::optional<Allocation> memory_;
  std::optional<PrimaryContext> context_;
  std::optional<CurrentContext> current_;
};

// A thread fills one piece while the device reads the other, and no more.
TEST_F(WeightsFilesTest, NoPieceIsFilledThatIsStillRead) {
  TensorSetWriter writer = BeginAnew(driver());
  HeldStream held(device);
  HoldDefaultStream(held);
  bool is_held = true;
  Must(writer.ReadFiles(
      {path_}, reads_,
      {.threads = 1, .progress = [&](std::uint64_t done, std::uint64_t total) {
         EXPECT_EQ(total, kTensors * kPiece);
         EXPECT_TRUE(!is_held || done <= 2 * kPiece) << done;
         if (done < 2 * kPiece) return absl::OkStatus();
         is_held = false;
         held.Release();
         return absl::OkStatus();
       }}));
  EXPECT_FALSE(is_held);
  EXPECT_TRUE(Copied() == bytes_);
}

// Its memory goes next: what was still copied there would end the context.
TEST_F(WeightsFilesTest, AReadThatFailsLeavesNoCopyUnderWay) {
  TensorSetWriter writer = BeginAnew(driver());
  std::filesystem::resize_file(path_, 2 * kPiece - 1);
  HeldStream held(device);
  HoldDefaultStream(held);
  const absl::Status cut = writer.ReadFiles(
      {path_}, reads_,
      {.threads = 1, .progress = [&](std::uint64_t, std::uint64_t) {
         held.Release();
         return absl::OkStatus();
       }});
  EXPECT_TRUE(absl::IsDataLoss(cut)) << cut;
  EXPECT_EQ(driver()->cuStreamQuery(nullptr), CUDA_SUCCESS);
}

// Whichever call of one read fails: an error, no bytes that are taken for a set's,
// and no copy under way.
TEST_F(WeightsFilesTest, EachFailingCallIsTold) {
  DriverFaults faults;
  TensorSetWriter writer = BeginAnew(FaultyDriver(driver(), &faults));
  for (const char* entry :
       {"cuMemcpyHtoDAsync", "cuEventCreate", "cuEventRecord", "cuEventQuery",
        "cuStreamGetCtx"}) {
    for (const std::uint64_t nth : {1, 3}) {
      faults.Arm({.point = {.nth = nth},
                  .calls = CallKind::kAny,
                  .entry = entry,
                  .result = CUDA_ERROR_OUT_OF_MEMORY});
      const absl::Status failed =
          writer.ReadFiles({path_}, reads_, {.threads = 1});
      EXPECT_EQ(faults.Disarm().fired, 1u) << entry;
      EXPECT_TRUE(absl::IsResourceExhausted(failed)) << entry << failed;
      EXPECT_THAT(std::string(failed.message()), ::testing::HasSubstr(entry));
      EXPECT_EQ(driver()->cuStreamQuery(nullptr), CUDA_SUCCESS) << entry;
    }
  }
  Must(writer.ReadFiles({path_}, reads_, {.threads = 1}));
  EXPECT_TRUE(Copied() == bytes_);
}

// By default as any thread may end it.
void BeginToCapture(const Stream& stream,
                    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED) {
  EXPECT_EQ(TestDriver()->cuStreamBeginCapture(stream.get(), mode),
            CUDA_SUCCESS);
}
// Whether nothing invalidated it.
bool EndCapture(const Stream& stream) {
  CUgraph graph = nullptr;
  const CUresult ended = TestDriver()->cuStreamEndCapture(stream.get(), &graph);
  if (graph != nullptr) {
    EXPECT_EQ(TestDriver()->cuGraphDestroy(graph), CUDA_SUCCESS);
  }
  return ended == CUDA_SUCCESS;
}

// What the changed driver does once, behind what comes next on a default stream; and
// how often it was asked for captures since.
std::function<void()> behind_a_copy;
std::function<void()> behind_a_kernel;
std::atomic<int> asked = 0;

CUresult Then(CUresult result, CUstream stream, std::function<void()>& behind) {
  if (stream != nullptr || behind == nullptr) return result;
  asked = 0;
  std::exchange(behind, nullptr)();
  return result;
}
CUresult CUDAAPI CopyAndMore(CUdeviceptr to, const void* from, std::size_t size,
                             CUstream stream) {
  return Then(TestDriver()->cuMemcpyHtoDAsync(to, from, size, stream), stream,
              behind_a_copy);
}
CUresult CUDAAPI LaunchAndMore(CUfunction kernel, unsigned x, unsigned y,
                               unsigned z, unsigned threads_x,
                               unsigned threads_y, unsigned threads_z,
                               unsigned shared, CUstream stream,
                               void** arguments, void** extra) {
  return Then(
      TestDriver()->cuLaunchKernel(kernel, x, y, z, threads_x, threads_y,
                                   threads_z, shared, stream, arguments, extra),
      stream, behind_a_kernel);
}
CUresult CUDAAPI CountQuestion(CUstream stream, CUstreamCaptureStatus* status) {
  const CUresult result = TestDriver()->cuStreamIsCapturing(stream, status);
  ++asked;
  return result;
}
platform::Driver DriverWithMore() {
  platform::DriverTable table = TestDriver().table();
  table.cuMemcpyHtoDAsync = &CopyAndMore;
  table.cuLaunchKernel = &LaunchAndMore;
  table.cuStreamIsCapturing = &CountQuestion;
  return ChangedDriver(table);
}

// The driver neither records a point behind the copy nor waits for it until the
// capture has ended.
TEST_F(WeightsFilesTest, ACaptureThatBeginsBehindACopyLeavesNoneUnderWay) {
  TensorSetWriter writer = BeginAnew(DriverWithMore());
  const Stream blocking(CU_STREAM_DEFAULT);
  HeldStream held(device);
  HoldDefaultStream(held);
  std::atomic<bool> captures = false;
  behind_a_copy = [&] {
    BeginToCapture(blocking);
    captures = true;
  };
  std::optional<bool> stayed_whole;
  const absl::Status refused = writer.ReadFiles(
      {path_}, reads_,
      {.threads = 1, .progress = [&](std::uint64_t, std::uint64_t) {
         // For the point, and then to wait.
         if (!captures || asked < 2 || stayed_whole.has_value()) {
           return absl::OkStatus();
         }
         stayed_whole = EndCapture(blocking);
         held.Release();
         return absl::OkStatus();
       }});
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(stayed_whole, ::testing::Optional(true));
  behind_a_copy = nullptr;
  EXPECT_EQ(driver()->cuStreamQuery(nullptr), CUDA_SUCCESS);
  if (!stayed_whole.has_value()) {
    EndCapture(blocking);
    held.Release();
  }
  Must(writer.ReadFiles({path_}, reads_, {.threads = 1}));
  EXPECT_TRUE(Copied() == bytes_);
}

// Nor where the device writes checksums to memory of the host.
TEST_F(WeightsFilesTest, ACaptureThatBeginsBehindAKernelLeavesNoneUnderWay) {
  TensorSetWriter writer = BeginAnew(driver());
  Must(writer.ReadFiles({path_}, reads_, {}));
  Must(writer.Seal({}));
  const TensorSet set = Must(TensorSet::Open(
      DriverWithMore(), memory_->address(), memory_->requested_size()));
  EXPECT_EQ(Must(set.Verify()), kTensors);
  const Stream blocking(CU_STREAM_DEFAULT);
  HeldStream held(device);
  HoldDefaultStream(held);
  std::atomic<bool> returned = false;
  bool was_awaited = false;
  std::thread other;
  behind_a_kernel = [&] {
    BeginToCapture(blocking);
    other = std::thread([&] {
      while (!returned && asked < 2) absl::SleepFor(absl::Milliseconds(1));
      was_awaited = !returned;
      EXPECT_TRUE(EndCapture(blocking));
      held.Release();
    });
  };
  const absl::StatusOr<std::size_t> compared = set.Verify();
  behind_a_kernel = nullptr;
  returned = true;
  other.join();
  EXPECT_TRUE(was_awaited);
  EXPECT_EQ(Must(compared), kTensors);
}

// Of a stream that the default one does not wait for, checksums are taken beside its
// capture; of another one they are not begun. Either stays whole.
TEST_F(WeightsFilesTest, ChecksumsBreakNoCapture) {
  TensorSetWriter writer = BeginAnew(driver());
  Must(writer.ReadFiles({path_}, reads_, {}));
  Must(writer.Seal({}));
  const TensorSet set = Must(
      TensorSet::Open(driver(), memory_->address(), memory_->requested_size()));
  const Stream aside;
  BeginToCapture(aside, CU_STREAM_CAPTURE_MODE_GLOBAL);
  const absl::StatusOr<std::size_t> compared = set.Verify();
  EXPECT_TRUE(EndCapture(aside));
  EXPECT_EQ(Must(compared), kTensors);

  const Stream blocking(CU_STREAM_DEFAULT);
  BeginToCapture(blocking, CU_STREAM_CAPTURE_MODE_GLOBAL);
  const absl::Status refused = set.Verify().status();
  EXPECT_TRUE(EndCapture(blocking));
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()),
              ::testing::HasSubstr("cuStreamEndCapture()"));
}

// Its copies are waited for, which breaks no capture: nor are they left under way.
TEST_F(WeightsFilesTest, AWriterEndsBesideACapture) {
  std::optional<TensorSetWriter> writer = BeginAnew(driver());
  const Stream aside;
  BeginToCapture(aside, CU_STREAM_CAPTURE_MODE_GLOBAL);
  const absl::Status taken = writer->TakeChecksums();
  writer.reset();
  EXPECT_TRUE(EndCapture(aside));
  EXPECT_TRUE(taken.ok()) << taken;
}

}  // namespace
}  // namespace vmm::testing
