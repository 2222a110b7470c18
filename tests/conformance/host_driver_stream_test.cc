// Streams of the host-memory driver, where the model has its own rules.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <thread>
#include <vector>

#include "tests/conformance/descriptors.h"
#include "tests/conformance/host_driver_test.h"
#include "tests/support/child.h"

namespace vmm::testing {
namespace {

// In a process of its own: the context is lost.
int UnmapsUnderWork(const std::vector<std::string>&) {
  const platform::DriverTable& cu = DriverWithContext();
  Checks checks;
  const CUmemAllocationProp prop = Properties();
  const CUmemAccessDesc desc = Access(kReadWrite);
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr address = 0;
  CUstream stream = nullptr;
  CUstream other = nullptr;
  checks.Expect("create", cu.cuMemCreate(&handle, kGranule, &prop, 0),
                CUDA_SUCCESS);
  checks.Expect("reserve",
                cu.cuMemAddressReserve(&address, 2 * kGranule, 0, 0, 0),
                CUDA_SUCCESS);
  for (const CUdeviceptr at : {address, address + kGranule}) {
    checks.Expect("map", cu.cuMemMap(at, kGranule, 0, handle, 0), CUDA_SUCCESS);
    checks.Expect("access", cu.cuMemSetAccess(at, kGranule, &desc, 1),
                  CUDA_SUCCESS);
  }
  checks.Expect("stream", cu.cuStreamCreate(&stream, 1), CUDA_SUCCESS);
  checks.Expect("stream", cu.cuStreamCreate(&other, 1), CUDA_SUCCESS);
  checks.Expect("wait", cu.cuStreamWaitValue64(stream, address, 1, 0),
                CUDA_SUCCESS);
  checks.Expect("fill", cu.cuMemsetD8Async(address + kGranule, 1, 8, stream),
                CUDA_SUCCESS);
  checks.Expect("unmap", cu.cuMemUnmap(address + kGranule, kGranule),
                CUDA_SUCCESS);
  checks.Expect("write", cu.cuStreamWriteValue64(other, address, 1, 0),
                CUDA_SUCCESS);
  constexpr CUresult kFault = CUDA_ERROR_ILLEGAL_ADDRESS;
  checks.Expect("synchronize", cu.cuStreamSynchronize(stream), kFault);
  checks.Expect("sticky", cu.cuCtxSynchronize(), kFault);
  char byte = 0;
  checks.Expect("copy", cu.cuMemcpyDtoH(&byte, address, 1), kFault);
  // A context made anew is in order.
  CUcontext context = nullptr;
  checks.Expect("release", cu.cuDevicePrimaryCtxRelease(0), CUDA_SUCCESS);
  checks.Expect("retain", cu.cuDevicePrimaryCtxRetain(&context, 0),
                CUDA_SUCCESS);
  checks.Expect("copy", cu.cuMemcpyDtoH(&byte, address, 1), CUDA_SUCCESS);
  return checks.failures();
}
const bool kUnmapsUnderWork =
    RegisterChild("unmaps_under_work", &UnmapsUnderWork);

TEST(Pitfall21, UnmappingUnderQueuedWorkIsAFaultOfTheWork) {
  EXPECT_EQ(Child::Start("unmaps_under_work", {}).Wait(), 0);
}

// With VMMSHARE_HOST_DELAY. What does not wait is not done before that time;
// what waits takes that long.
int SubmitsLate(const std::vector<std::string>&) {
  const platform::DriverTable& cu = DriverWithContext();
  constexpr absl::Duration kDelay = absl::Milliseconds(200);
  Checks checks;
  CUdeviceptr block = 0;
  checks.Expect("alloc", cu.cuMemAlloc(&block, 64), CUDA_SUCCESS);
  const std::uint64_t word = 7;
  std::uint64_t read = 0;
  using Submit = std::function<CUresult()>;
  for (const Submit& submit :
       {Submit([&] { return cu.cuMemsetD8(block, 1, 64); }),
        Submit([&] { return cu.cuMemcpyDtoD(block + 32, block, 16); }),
        Submit([&] { return cu.cuMemcpyHtoD(block, &word, sizeof(word)); })}) {
    const absl::Time start = absl::Now();
    checks.Expect("submit", submit(), CUDA_SUCCESS);
    const CUresult query = cu.cuStreamQuery(nullptr);
    checks.ExpectTrue("under way", query == CUDA_ERROR_NOT_READY ||
                                       absl::Now() - start >= kDelay);
    checks.Expect("read", cu.cuMemcpyDtoH(&read, block, sizeof(read)),
                  CUDA_SUCCESS);
    checks.ExpectTrue("late", absl::Now() - start >= kDelay);
  }
  checks.ExpectTrue("the word", read == word);
  return checks.failures();
}
const bool kSubmitsLate = RegisterChild("submits_late", &SubmitsLate);

TEST(Delay, HoldsUpWhatIsSubmittedWithoutWaiting) {
  EXPECT_EQ(
      Child::Start("submits_late", {}, {{"VMMSHARE_HOST_DELAY", "200000"}})
          .Wait(),
      0);
}

// args: none. Leaves a stream that waits for ever, and ends.
int LeavesWaiting(const std::vector<std::string>&) {
  const platform::DriverTable& cu = DriverWithContext();
  Checks checks;
  CUdeviceptr block = 0;
  CUstream stream = nullptr;
  checks.Expect("alloc", cu.cuMemAlloc(&block, 64), CUDA_SUCCESS);
  checks.Expect("fill", FillAndWait(cu, block, 0, 64), CUDA_SUCCESS);
  for (int i = 0; i < 3; ++i) {
    checks.Expect("stream", cu.cuStreamCreate(&stream, 1), CUDA_SUCCESS);
    checks.Expect("wait", cu.cuStreamWaitValue64(stream, block, 1, 0),
                  CUDA_SUCCESS);
  }
  checks.Expect("destroy", cu.cuStreamDestroy(stream), CUDA_SUCCESS);
  return checks.failures();
}
const bool kLeavesWaiting = RegisterChild("leaves_waiting", &LeavesWaiting);

TEST(Exit, DoesNotWaitForStreamsThatWaitForEver) {
  EXPECT_EQ(
      Child::Start("leaves_waiting", {}).Wait(absl::Now() + absl::Seconds(20)),
      0);
}

struct AtEnd {
  ~AtEnd() {
    if (handle == 0) return;
    const CUresult result = cu.cuMemRelease(handle);
    std::fprintf(stderr, "late release: %d\n", static_cast<int>(result));
    if (result != CUDA_ERROR_DEINITIALIZED) _Exit(77);
    if (cu.cuInit(0) != CUDA_ERROR_DEINITIALIZED) _Exit(78);
  }
  platform::DriverTable cu;  // A copy: TestDriver() is destroyed before.
  CUmemGenericAllocationHandle handle = 0;
};

int ReleasesLate(const std::vector<std::string>&) {
  // Made before the driver starts, hence destroyed after it has ended.
  static AtEnd at_end;
  at_end.cu = DriverWithContext();
  const CUmemAllocationProp prop = Properties();
  return at_end.cu.cuMemCreate(&at_end.handle, kGranule, &prop, 0);
}
const bool kReleasesLate = RegisterChild("releases_late", &ReleasesLate);

TEST(Pitfall30, ADestructorAfterTheDriversEndIsToldSo) {
  if (!LibrariesMayEndFirst()) {
    GTEST_SKIP() << "here a program's own destructors run before a library's "
                    "end, so no release comes too late";
  }
  EXPECT_EQ(Child::Start("releases_late", {}).Wait(), 0);
}

class Threads : public Conformance {};

TEST_F(Threads, MayAllUseTheDriver) {
  const CUcontext context = Current();
  std::vector<std::thread> threads;
  std::vector<int> failures(4, 0);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this, t, context, &failures] {
      Checks checks;
      checks.Expect("set", cu.cuCtxSetCurrent(context), CUDA_SUCCESS);
      const CUmemAllocationProp prop = Properties();
      const CUmemAccessDesc desc = Access(kReadWrite);
      for (int i = 0; i < 20; ++i) {
        CUmemGenericAllocationHandle handle = 0;
        CUdeviceptr address = 0;
        CUstream stream = nullptr;
        CUevent event = nullptr;
        std::uint64_t word = 0;
        MapNew(cu, &checks, prop, &handle, &address);
        checks.Expect("access", cu.cuMemSetAccess(address, kGranule, &desc, 1),
                      CUDA_SUCCESS);
        checks.Expect("stream", cu.cuStreamCreate(&stream, 1), CUDA_SUCCESS);
        checks.Expect("event", cu.cuEventCreate(&event, 2), CUDA_SUCCESS);
        checks.Expect("fill", cu.cuMemsetD8Async(address, 1, 4096, stream),
                      CUDA_SUCCESS);
        checks.Expect("write",
                      cu.cuStreamWriteValue64(stream, address + 8, t + i, 0),
                      CUDA_SUCCESS);
        checks.Expect("record", cu.cuEventRecord(event, stream), CUDA_SUCCESS);
        checks.Expect("wait", cu.cuEventSynchronize(event), CUDA_SUCCESS);
        checks.Expect("copy", cu.cuMemcpyDtoH(&word, address + 8, 8),
                      CUDA_SUCCESS);
        checks.ExpectTrue("the word", word == std::uint64_t(t + i));
        checks.Expect("event", cu.cuEventDestroy(event), CUDA_SUCCESS);
        checks.Expect("stream", cu.cuStreamDestroy(stream), CUDA_SUCCESS);
        checks.Expect("unmap", cu.cuMemUnmap(address, kGranule), CUDA_SUCCESS);
        checks.Expect("free", cu.cuMemAddressFree(address, kGranule),
                      CUDA_SUCCESS);
        checks.Expect("release", cu.cuMemRelease(handle), CUDA_SUCCESS);
      }
      failures[t] = checks.failures();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, std::vector<int>(4, 0));
}

class Waiting : public Conformance {};

// Its work is done on the caller's thread: others see it all the same, and
// come after it.
TEST_F(Waiting, ACopyThatWaitsKeepsItsStreamBusy) {
  constexpr std::size_t kSize = 16 * kGranule;
  const CUdeviceptr address = Memory(kSize);
  const CUstream stream = MakeStream();
  std::vector<std::uint8_t> bytes(kSize);
  std::atomic<bool> done = false;
  std::atomic<bool> seen = false;
  std::thread copies([&, context = Current()] {
    EXPECT_EQ(cu.cuCtxSetCurrent(context), CUDA_SUCCESS);
    while (!seen && !done) {
      EXPECT_EQ(cu.cuMemcpyDtoHAsync(bytes.data(), address, kSize, stream),
                CUDA_SUCCESS);
    }
  });
  const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!seen && std::chrono::steady_clock::now() < late) {
    seen = cu.cuStreamQuery(stream) == CUDA_ERROR_NOT_READY;
  }
  done = true;
  copies.join();
  EXPECT_TRUE(seen);
  EXPECT_EQ(cu.cuStreamQuery(stream), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemsetD8Async(address, 1, 8, stream), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamSynchronize(stream), CUDA_SUCCESS);
}

// The same when another thread destroys the stream beside it, whether or not a
// thread of the driver's did the stream's earlier work.
TEST_F(Waiting, ACopyThatWaitsIsWaitedForWhenItsStreamIsDestroyed) {
  constexpr std::size_t kSize = 16 * kGranule;
  const CUdeviceptr address = Memory(kSize);
  ASSERT_EQ(FillAndWait(cu, address, 1, kSize), CUDA_SUCCESS);
  for (const bool worked : {false, true}) {
    const auto late =
        std::chrono::steady_clock::now() + std::chrono::seconds(20);
    bool seen = false;
    while (!seen && std::chrono::steady_clock::now() < late) {
      CUstream stream = nullptr;
      ASSERT_EQ(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING),
                CUDA_SUCCESS);
      if (worked) {
        ASSERT_EQ(cu.cuMemsetD8Async(address, 1, 8, stream), CUDA_SUCCESS);
        ASSERT_EQ(cu.cuStreamSynchronize(stream), CUDA_SUCCESS);
      }
      std::vector<std::uint8_t> bytes(kSize);
      std::atomic<bool> done = false;
      std::thread copies([&, context = Current()] {
        EXPECT_EQ(cu.cuCtxSetCurrent(context), CUDA_SUCCESS);
        EXPECT_EQ(cu.cuMemcpyDtoHAsync(bytes.data(), address, kSize, stream),
                  CUDA_SUCCESS);
        done = true;
      });
      while (!seen && !done) {
        seen = cu.cuStreamQuery(stream) == CUDA_ERROR_NOT_READY;
      }
      EXPECT_EQ(cu.cuStreamDestroy(stream), CUDA_SUCCESS);
      EXPECT_EQ(cu.cuCtxSynchronize(), CUDA_SUCCESS);
      if (seen) {
        EXPECT_EQ(bytes.back(), 1) << worked;
      }
      copies.join();
    }
    EXPECT_TRUE(seen);
  }
}

}  // namespace
}  // namespace vmm::testing
