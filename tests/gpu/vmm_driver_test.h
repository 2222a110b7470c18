// What the tests of vmm/ that need a driver share.
#ifndef VMMSHARE_TESTS_GPU_VMM_DRIVER_TEST_H_
#define VMMSHARE_TESTS_GPU_VMM_DRIVER_TEST_H_

#include <cuda.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "platform/cuda/driver.h"
#include "platform/os/os_handle.h"
#include "tests/support/ledger.h"
#include "tests/support/must.h"
#include "tests/support/open_handles.h"
#include "tests/support/test_driver.h"
#include "vmm/memory/device.h"
#include "vmm/memory/handle_kind.h"

namespace vmm::testing {

inline constexpr std::uint64_t kMiB = 1 << 20;
// Of every kind of memory on the devices measured. Tests that depend on it
// compare it with the driver's first.
inline constexpr std::uint64_t kGranule = 2 * kMiB;

// The handle kind of this operating system, and that of another one. What they
// depend on is a constant of another source, set before anything runs.
// NOLINTBEGIN(cppcoreguidelines-interfaces-global-init)
inline const HandleKind kNativeKind = platform::kNativeHandleIsPosixFd
                                          ? HandleKind::kPosixFd
                                          : HandleKind::kWin32;
inline const HandleKind kForeignKind = platform::kNativeHandleIsPosixFd
                                           ? HandleKind::kWin32
                                           : HandleKind::kPosixFd;
// NOLINTEND(cppcoreguidelines-interfaces-global-init)

inline Device FirstDevice() { return Must(Device::ByOrdinal(TestDriver(), 0)); }

// Uses as many streams at once as a test does: a real driver keeps memory for
// them, 4 MiB for 16 and 8 more for 32 (measured), also when they are gone.
inline void UseStreams(const PrimaryContext& context) {
  const platform::Driver& driver = TestDriver();
  const CurrentContext current = Must(context.MakeCurrent());
  CUdeviceptr memory = 0;
  EXPECT_EQ(driver->cuMemAlloc(&memory, kGranule), CUDA_SUCCESS);
  std::vector<CUstream> streams(32);
  CUdeviceptr part = memory;  // Each stream's own: they run side by side.
  for (CUstream& stream : streams) {
    EXPECT_EQ(driver->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING),
              CUDA_SUCCESS);
    EXPECT_EQ(
        driver->cuMemsetD8Async(part, 0, kGranule / streams.size(), stream),
        CUDA_SUCCESS);
    part += kGranule / streams.size();
  }
  for (CUstream stream : streams) {
    EXPECT_EQ(driver->cuStreamSynchronize(stream), CUDA_SUCCESS);
    EXPECT_EQ(driver->cuStreamDestroy(stream), CUDA_SUCCESS);
  }
  EXPECT_EQ(driver->cuMemFree(memory), CUDA_SUCCESS);
}

// A real driver's interprocess events are in a file that it opens for the first
// and keeps (measured).
inline void UseAnInterprocessEvent(const PrimaryContext& context) {
  const platform::Driver& driver = TestDriver();
  const CurrentContext current = Must(context.MakeCurrent());
  CUevent event = nullptr;
  EXPECT_EQ(driver->cuEventCreate(
                &event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING),
            CUDA_SUCCESS);
  CUipcEventHandle handle{};
  EXPECT_EQ(driver->cuIpcGetEventHandle(&handle, event), CUDA_SUCCESS);
  EXPECT_EQ(driver->cuEventDestroy(event), CUDA_SUCCESS);
}

// Contexts that stay for the life of the program, so that what a real driver
// sets up for its first context, and for the first streams in it, is not taken
// for a leak of a test. At most two: a context takes hundreds of megabytes of a
// GPU.
inline void KeepContexts() {
  static const auto* const contexts = [] {
    auto* kept = new std::vector<PrimaryContext>;
    for (const Device& device : Must(Device::All(TestDriver()))) {
      if (kept->size() < 2)
        kept->push_back(Must(PrimaryContext::Retain(device)));
    }
    for (const PrimaryContext& context : *kept) UseStreams(context);
    UseAnInterprocessEvent(kept->front());
    return kept;
  }();
  static_cast<void>(contexts);
}

// Asserts on destruction that the driver holds what it held before. A real
// driver gives back what a killed process had a little later.
class ExpectDriverUnchanged {
 public:
  ExpectDriverUnchanged() : before_(TakeInventory(TestDriver())) {}
  ~ExpectDriverUnchanged() {
    const absl::Time patience =
        absl::Now() + absl::Seconds(OnHostMemoryDriver() ? 0 : 2);
    std::vector<std::string> differences;
    do {
      differences = Differences(before_, TakeInventory(TestDriver()));
      if (differences.empty()) return;
      absl::SleepFor(absl::Milliseconds(5));
    } while (absl::Now() < patience);
    ADD_FAILURE() << "the driver holds something else than before: "
                  << absl::StrJoin(differences, "; ");
  }

 private:
  Inventory before_;
};

// Leaves no descriptor open and nothing in the driver. The first device's
// context is current.
class DriverTest : public ::testing::Test {
 protected:
  DriverTest() : DriverTest((KeepContexts(), 0)) {}

  const platform::Driver& driver() const { return TestDriver(); }

  // The device to share with; null, and the reason is printed, where there is
  // one device or it is no peer.
  const Device* Peer() {
    const std::vector<Device> all = Must(Device::All(driver()));
    if (all.size() < 2) {
      std::printf("skipped: one device is visible, two are needed\n");
      return nullptr;
    }
    if (!Must(all[1].CanAccess(device)) || !Must(device.CanAccess(all[1]))) {
      std::printf("skipped: devices 0 and 1 have no peer access\n");
      return nullptr;
    }
    peer_.assign(1, all[1]);
    return &peer_.front();
  }

  std::vector<std::uint8_t> Read(CUdeviceptr from, std::size_t size) {
    std::vector<std::uint8_t> bytes(size);
    EXPECT_EQ(driver()->cuMemcpyDtoH(bytes.data(), from, size), CUDA_SUCCESS);
    return bytes;
  }
  // Both return when the bytes are there for all: other streams, mappings and
  // processes.
  void Write(CUdeviceptr to, const std::vector<std::uint8_t>& bytes) {
    EXPECT_EQ(driver()->cuMemcpyHtoD(to, bytes.data(), bytes.size()),
              CUDA_SUCCESS);
    EXPECT_EQ(driver()->cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  }
  void Fill(CUdeviceptr to, std::uint8_t value, std::size_t size) {
    EXPECT_EQ(driver()->cuMemsetD8(to, value, size), CUDA_SUCCESS);
    EXPECT_EQ(driver()->cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  }
  ::testing::AssertionResult Holds(CUdeviceptr at, std::uint8_t value,
                                   std::size_t size) {
    const std::vector<std::uint8_t> bytes = Read(at, size);
    const std::vector<std::uint8_t> expected(size, value);
    // memcmp(), many times faster where sanitizers look at each byte.
    if (bytes == expected) return ::testing::AssertionSuccess();
    const auto wrong =
        std::mismatch(bytes.begin(), bytes.end(), expected.begin()).first;
    return ::testing::AssertionFailure()
           << "byte " << wrong - bytes.begin() << " is " << int{*wrong}
           << ", expected " << int{value};
  }

 private:
  explicit DriverTest(int) {}

  ExpectNoNewHandles no_new_handles_;
  ExpectDriverUnchanged driver_unchanged_;
  PrimaryContext context_ = Must(PrimaryContext::Retain(FirstDevice()));
  CurrentContext current_ = Must(context_.MakeCurrent());
  std::vector<Device> peer_;

 protected:
  const Device device = FirstDevice();
};

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_GPU_VMM_DRIVER_TEST_H_
