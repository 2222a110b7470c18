// Waits of the host-memory driver that end in another way than they were to: what
// they wait for, or where, is gone by then.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/conformance/bytes_as_text.h"
#include "tests/conformance/descriptors.h"
#include "tests/conformance/host_driver_test.h"
#include "tests/support/child.h"

namespace vmm::testing {
namespace {

// Calls `call` on two threads with this one's context, opens `gate` once both are
// about to, and returns what they answered, the smaller first.
std::pair<CUresult, CUresult> OnTwoThreads(
    const platform::DriverTable& cu, CUdeviceptr gate,
    const std::function<CUresult()>& call) {
  CUcontext context = nullptr;
  cu.cuCtxGetCurrent(&context);
  CUstream opener = nullptr;
  cu.cuStreamCreate(&opener, CU_STREAM_NON_BLOCKING);
  std::atomic<int> ready = 0;
  std::array<CUresult, 2> results{};
  std::array<std::thread, 2> threads;
  for (std::size_t i = 0; i < threads.size(); ++i) {
    threads[i] = std::thread([&, i] {
      cu.cuCtxSetCurrent(context);
      ++ready;
      results[i] = call();
    });
  }
  while (ready < 2) std::this_thread::yield();
  // So that both most likely wait by then; what they answer is the same anyway.
  for (int i = 0; i < 2000; ++i) cu.cuStreamQuery(opener);
  cu.cuStreamWriteValue64(opener, gate, 1, 0);
  for (std::thread& thread : threads) thread.join();
  cu.cuStreamDestroy(opener);
  return std::minmax(results[0], results[1]);
}

// Which of several functions of streams is done first.
struct Turn {
  static void CUDA_CB Take(void* data) {
    Turn& turn = *static_cast<Turn*>(data);
    turn.taken = (*turn.turns)++;
  }
  std::atomic<int>* turns;
  int taken = -1;
};

class HostWaits : public Conformance {
 protected:
  // A stream that stands until the word at `gate` is 1.
  CUstream Standing(CUdeviceptr gate) {
    const CUstream stream = MakeStream();
    EXPECT_EQ(cu.cuStreamWaitValue64(stream, gate, 1, 0), CUDA_SUCCESS);
    return stream;
  }
};

TEST_F(HostWaits, OfTwoThatFreeABlockOneIsTooLate) {
  const CUdeviceptr gate = Memory();
  Standing(gate);
  CUdeviceptr block = 0;
  ASSERT_EQ(cu.cuMemAlloc(&block, kMiB), CUDA_SUCCESS);
  EXPECT_EQ(OnTwoThreads(cu, gate, [&] { return cu.cuMemFree(block); }),
            std::pair(CUDA_SUCCESS, kInvalid));
}

// args: a legacy handle.
int ClosesTwice(const std::vector<std::string>& args) {
  const platform::DriverTable& cu = DriverWithContext();
  const auto handle = FromText<CUipcMemHandle>(args[0]);
  CUdeviceptr gate = 0;
  CUdeviceptr opened = 0;
  CUstream stream = nullptr;
  Checks checks;
  checks.Expect("gate", cu.cuMemAlloc(&gate, 8), CUDA_SUCCESS);
  checks.Expect("zero", FillAndWait(cu, gate, 0, 8), CUDA_SUCCESS);
  checks.Expect("open", cu.cuIpcOpenMemHandle(&opened, handle, 1),
                CUDA_SUCCESS);
  checks.Expect("stream", cu.cuStreamCreate(&stream, 1), CUDA_SUCCESS);
  checks.Expect("stand", cu.cuStreamWaitValue64(stream, gate, 1, 0),
                CUDA_SUCCESS);
  const VmmshareHostLedger before = LedgerNow();
  checks.ExpectTrue("one closes it", OnTwoThreads(cu, gate, [&] {
                                       return cu.cuIpcCloseMemHandle(opened);
                                     }) == std::pair(CUDA_SUCCESS, kInvalid));
  const VmmshareHostLedger after = LedgerNow();
  checks.ExpectTrue("once", after.legacy_opens == before.legacy_opens - 1);
  // Opened again while one waits to close it, it stays.
  checks.Expect("zero", FillAndWait(cu, gate, 0, 8), CUDA_SUCCESS);
  checks.Expect("stand", cu.cuStreamWaitValue64(stream, gate, 1, 0),
                CUDA_SUCCESS);
  checks.Expect("open", cu.cuIpcOpenMemHandle(&opened, handle, 1),
                CUDA_SUCCESS);
  std::atomic<int> turn = 0;
  CUdeviceptr again = 0;
  const auto both = OnTwoThreads(cu, gate, [&] {
    if (turn++ == 0) return cu.cuIpcCloseMemHandle(opened);
    for (int i = 0; i < 1000; ++i) cu.cuStreamQuery(stream);
    return cu.cuIpcOpenMemHandle(&again, handle, 1);
  });
  checks.ExpectTrue("both", both == std::pair(CUDA_SUCCESS, CUDA_SUCCESS));
  checks.ExpectTrue("one is open",
                    LedgerNow().legacy_opens == before.legacy_opens);
  unsigned char byte = 0;
  checks.Expect("read", cu.cuMemcpyDtoH(&byte, again, 1), CUDA_SUCCESS);
  checks.ExpectTrue("what it was", byte == 3);
  checks.Expect("close", cu.cuIpcCloseMemHandle(again), CUDA_SUCCESS);
  return checks.failures();
}
const bool kClosesTwice = RegisterChild("closes-twice", &ClosesTwice);

TEST_F(HostWaits, OfTwoThatCloseAHandleOneIsTooLate) {
  CUdeviceptr block = 0;
  CUipcMemHandle handle{};
  ASSERT_EQ(cu.cuMemAlloc(&block, kMiB), CUDA_SUCCESS);
  EXPECT_EQ(FillAndWait(cu, block, 3, kMiB), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuIpcGetMemHandle(&handle, block), CUDA_SUCCESS);
  EXPECT_EQ(Child::Start("closes-twice", {ToText(handle)}).Wait(), 0);
  EXPECT_EQ(cu.cuMemFree(block), CUDA_SUCCESS);
}

TEST_F(HostWaits, TheNullStreamComesAfterBlockingStreamsThatWereDestroyed) {
  const CUdeviceptr gate = Memory();
  CUcontext made = nullptr;
  CUstream remote = nullptr;
  ASSERT_EQ(FindExport<CUresult(CUcontext*, unsigned, int)>("cuCtxCreate_v2")(
                &made, 0, 0),
            CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamCreate(&remote, CU_STREAM_DEFAULT), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamWaitValue64(remote, gate, 1, 0), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamDestroy(remote), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuCtxPopCurrent(&made), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemsetD8Async(gate + 8, 1, 8, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuCtxSynchronize(), CUDA_SUCCESS) << "another context's";
  EXPECT_EQ(Word(gate + 8), 0x0101010101010101u);
  CUstream local = nullptr;
  EXPECT_EQ(cu.cuStreamCreate(&local, CU_STREAM_DEFAULT), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamWaitValue64(local, gate, 1, 0), CUDA_SUCCESS);
  std::atomic<int> turns = 0;
  Turn of_local{&turns};
  Turn of_null{&turns};
  EXPECT_EQ(cu.cuLaunchHostFunc(local, &Turn::Take, &of_local), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamDestroy(local), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuLaunchHostFunc(nullptr, &Turn::Take, &of_null), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamQuery(nullptr), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(cu.cuStreamWriteValue64(MakeStream(), gate, 1, 0), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(of_local.taken, 0);
  EXPECT_EQ(of_null.taken, 1);
  EXPECT_EQ(FindExport<CUresult(CUcontext)>("cuCtxDestroy_v2")(made),
            CUDA_SUCCESS);
}

TEST_F(HostWaits, EndWithTheirContext) {
  const CUdeviceptr gate = Memory();
  CUcontext made = nullptr;
  ASSERT_EQ(FindExport<CUresult(CUcontext*, unsigned, int)>("cuCtxCreate_v2")(
                &made, 0, 0),
            CUDA_SUCCESS);
  CUstream stream = nullptr;
  EXPECT_EQ(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamWaitValue64(stream, gate, 1, 0), CUDA_SUCCESS);
  std::atomic<bool> ready = false;
  CUresult result = CUDA_SUCCESS;
  std::thread waits([&] {
    EXPECT_EQ(cu.cuCtxSetCurrent(made), CUDA_SUCCESS);
    ready = true;
    result = cu.cuCtxSynchronize();
  });
  while (!ready) std::this_thread::yield();
  for (int i = 0; i < 2000; ++i) cu.cuStreamQuery(stream);
  EXPECT_EQ(FindExport<CUresult(CUcontext)>("cuCtxDestroy_v2")(made),
            CUDA_SUCCESS);
  waits.join();
  EXPECT_EQ(result, CUDA_ERROR_CONTEXT_IS_DESTROYED);
}

// Made before the driver starts, hence destroyed after it has ended: sees what the
// threads that waited then were told.
struct Waiters {
  ~Waiters() {
    if (threads.empty()) return;
    for (std::thread& thread : threads) thread.join();
    for (const CUresult result : results) {
      if (result != CUDA_ERROR_DEINITIALIZED) _Exit(77);
    }
  }
  std::vector<std::thread> threads;
  std::array<CUresult, 3> results{};
};

int EndsUnderWaits(const std::vector<std::string>&) {
  static Waiters waiters;
  const platform::DriverTable& cu = DriverWithContext();
  static const platform::DriverTable copy = cu;  // The other one goes before.
  CUdeviceptr gate = 0;
  CUcontext context = nullptr;
  CUstream stream = nullptr;
  CUevent event = nullptr;
  Checks checks;
  checks.Expect("context", cu.cuCtxGetCurrent(&context), CUDA_SUCCESS);
  checks.Expect("gate", cu.cuMemAlloc(&gate, 8), CUDA_SUCCESS);
  checks.Expect("zero", FillAndWait(cu, gate, 0, 8), CUDA_SUCCESS);
  checks.Expect("stream", cu.cuStreamCreate(&stream, 1), CUDA_SUCCESS);
  checks.Expect("event", cu.cuEventCreate(&event, 2), CUDA_SUCCESS);
  checks.Expect("stand", cu.cuStreamWaitValue64(stream, gate, 1, 0),
                CUDA_SUCCESS);
  checks.Expect("record", cu.cuEventRecord(event, stream), CUDA_SUCCESS);
  std::atomic<int> ready = 0;
  const auto wait = [&](int which, auto call) {
    waiters.threads.emplace_back([&ready, which, context, call] {
      copy.cuCtxSetCurrent(context);
      ++ready;
      waiters.results[which] = call();
    });
  };
  wait(0, [stream] { return copy.cuStreamSynchronize(stream); });
  wait(1, [event] { return copy.cuEventSynchronize(event); });
  wait(2, [] { return copy.cuCtxSynchronize(); });
  while (ready < 3) std::this_thread::yield();
  for (int i = 0; i < 2000; ++i) cu.cuStreamQuery(stream);
  return checks.failures();
}
const bool kEndsUnderWaits = RegisterChild("ends-under-waits", &EndsUnderWaits);

TEST_F(HostWaits, EndWithTheProgram) {
  if (!LibrariesMayEndFirst()) {
    GTEST_SKIP() << "here a program's own destructors run before a library's "
                    "end";
  }
  EXPECT_EQ(Child::Start("ends-under-waits", {}).Wait(), 0);
}

}  // namespace
}  // namespace vmm::testing
