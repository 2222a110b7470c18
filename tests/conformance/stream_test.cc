// Streams, values in memory, host functions.
#include <atomic>

#include "tests/conformance/conformance.h"
#include "tests/support/test_driver.h"

namespace vmm::testing {
namespace {

class Streams : public Conformance {
 protected:
  Streams() : address(Memory()), stream(MakeStream()), other(MakeStream()) {}

  CUresult Wait(CUdeviceptr at, std::uint64_t value, unsigned flags = 0) {
    return cu.cuStreamWaitValue64(stream, at, value, flags);
  }
  CUresult Write(CUdeviceptr at, std::uint64_t value, unsigned flags = 0) {
    return cu.cuStreamWriteValue64(other, at, value, flags);
  }

  const CUdeviceptr address;
  const CUstream stream;
  const CUstream other;
};

TEST_F(Streams, HaveKnownFlags) {
  CUstream made = nullptr;
  EXPECT_EQ(cu.cuStreamCreate(&made, 77), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Streams, AreIdleAtFirst) {
  EXPECT_EQ(cu.cuStreamQuery(stream), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamSynchronize(stream), CUDA_SUCCESS);
}

TEST_F(Streams, KnowTheirContext) {
  const CUcontext current = Current();
  CUcontext context = nullptr;
  EXPECT_EQ(cu.cuStreamGetCtx(stream, &context), CUDA_SUCCESS);
  EXPECT_EQ(context, current);
  EXPECT_EQ(cu.cuStreamGetCtx(nullptr, &context), CUDA_SUCCESS);
  EXPECT_EQ(context, current);
}

TEST_F(Streams, WaitForAValueThatAnotherWrites) {
  ASSERT_EQ(Wait(address, 1), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
  ASSERT_EQ(Write(address, 1), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamQuery(stream), CUDA_SUCCESS);
  EXPECT_EQ(Word(address), 1u);
}

// Its copies and fills are like any other memory's.
TEST_F(Streams, TakeNoValuesInMemoryOfAPool) {
  CUdeviceptr pooled = 0;
  ASSERT_EQ(cu.cuMemAllocAsync(&pooled, kGranule, stream), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemsetD8Async(pooled, 0, 8, stream), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_EQ(Write(pooled, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Wait(pooled, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemFreeAsync(pooled, stream), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamSynchronize(stream), CUDA_SUCCESS);
}

TEST_F(Streams, DoTheirWorkInOrder) {
  ASSERT_EQ(Wait(address, 1), CUDA_SUCCESS);
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(cu.cuMemsetD8Async(address + 8 + i, 1, 200 - i, stream),
              CUDA_SUCCESS);
  }
  ASSERT_EQ(cu.cuStreamWriteValue64(stream, address + 512, 42, 0),
            CUDA_SUCCESS);
  EXPECT_EQ(Word(address + 512), 0u) << "not before its turn";
  ASSERT_EQ(Write(address, 1), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_EQ(Word(address + 512), 42u);
  EXPECT_EQ(Bytes(address + 8, 1)[0], 1);
}

TEST_F(Streams, WaitByEveryCondition) {
  ASSERT_EQ(cu.cuMemsetD32(address, 6, 1), CUDA_SUCCESS);  // The word is 6.
  ASSERT_EQ(cu.cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(Wait(address, 5, CU_STREAM_WAIT_VALUE_GEQ), CUDA_SUCCESS);
  EXPECT_EQ(Wait(address, 6, CU_STREAM_WAIT_VALUE_EQ), CUDA_SUCCESS);
  EXPECT_EQ(Wait(address, 2, CU_STREAM_WAIT_VALUE_AND), CUDA_SUCCESS);
  EXPECT_EQ(Wait(address, 1, CU_STREAM_WAIT_VALUE_NOR), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamSynchronize(stream), CUDA_SUCCESS);
  // 6 is none of these.
  ASSERT_EQ(Wait(address, 1, CU_STREAM_WAIT_VALUE_AND), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
  ASSERT_EQ(Write(address, 7), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamSynchronize(stream), CUDA_SUCCESS);
}

// "At least" is cyclic: a counter may wrap around.
TEST_F(Streams, CompareCounterValuesAcrossTheirWrap) {
  ASSERT_EQ(Write(address, 1), CUDA_SUCCESS);
  ASSERT_EQ(Wait(address, ~std::uint64_t{0} - 1), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamSynchronize(stream), CUDA_SUCCESS);
}

// What fences rest on: memory of the host is one word for the CPU and for
// streams, also as another mapping of it has it.
TEST_F(Streams, AndTheCpuExchangeValuesInMemoryOfTheHost) {
  const CUmemGenericAllocationHandle memory =
      CreateWith(Properties(kFd, CU_MEM_LOCATION_TYPE_HOST_NUMA));
  const CUmemGenericAllocationHandle imported = Import(Export(memory));
  const CUdeviceptr places[] = {Reserve(), Reserve()};
  Map(places[0], memory);
  Map(places[1], imported);
  std::vector<std::atomic_ref<std::uint64_t>> words;
  for (CUdeviceptr place : places) {
    const CUmemAccessDesc both[] = {
        Access(kReadWrite),
        Access(kReadWrite, 0, CU_MEM_LOCATION_TYPE_HOST_NUMA)};
    ASSERT_EQ(cu.cuMemSetAccess(place, kGranule, both, 2), CUDA_SUCCESS);
    words.emplace_back(*reinterpret_cast<std::uint64_t*>(
        static_cast<std::uintptr_t>(place + 512)));
  }
  words[0].store(0);
  for (std::uint64_t turn = 1; turn < 20; turn += 2) {
    const int side = turn % 4 == 1 ? 0 : 1;
    ASSERT_EQ(Wait(places[side] + 512, turn), CUDA_SUCCESS);
    ASSERT_EQ(cu.cuStreamWriteValue64(stream, places[1 - side] + 512, turn + 1,
                                      CU_STREAM_WRITE_VALUE_DEFAULT),
              CUDA_SUCCESS);
    EXPECT_EQ(cu.cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    words[1 - side].store(turn);
    ASSERT_EQ(cu.cuStreamSynchronize(stream), CUDA_SUCCESS);
    EXPECT_EQ(words[side].load(), turn + 1);
  }
}

TEST_F(Streams, RefuseValuesTheyCannotReach) {
  int local = 0;
  EXPECT_EQ(Wait(address + 4, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Wait(address + 3, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Wait(reinterpret_cast<CUdeviceptr>(&local) & ~CUdeviceptr{7}, 1),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Write(0, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Write(address + 4, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Wait(address, 1, 99), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Write(address, 1, 2), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Wait(address, 1, CU_STREAM_WAIT_VALUE_FLUSH),
            CUDA_ERROR_NOT_SUPPORTED);
}

TEST_F(Streams, WorkWithoutACurrentContext) {
  CUcontext context = nullptr;
  ASSERT_EQ(cu.cuCtxPopCurrent(&context), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamQuery(stream), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamWriteValue64(stream, address, 3, 0), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemsetD8Async(address + 8, 1, 8, stream), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamSynchronize(nullptr), CUDA_ERROR_INVALID_CONTEXT);
  // A default stream is the current context's (measured on H200, driver 580).
  for (CUstream none : {CUstream{nullptr}, CU_STREAM_LEGACY}) {
    EXPECT_EQ(cu.cuStreamWriteValue64(none, address, 4, 0),
              CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(cu.cuStreamWaitValue64(none, address, 1, 0),
              CUDA_ERROR_INVALID_CONTEXT);
  }
  ASSERT_EQ(cu.cuCtxSetCurrent(context), CUDA_SUCCESS);
  EXPECT_EQ(Word(address), 3u);
}

TEST_F(Streams, TheNullStreamIsIndependentOfNonBlockingOnes) {
  // What the set-up put there; memset does not wait for the device (measured).
  ASSERT_EQ(cu.cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  ASSERT_EQ(Wait(address, 1), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamQuery(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemsetD8(address + 64, 1, 8), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
  ASSERT_EQ(Write(address, 1), CUDA_SUCCESS);
}

TEST_F(Streams, TheNullStreamWaitsForBlockingOnes) {
  const CUstream blocking = MakeStream(CU_STREAM_DEFAULT);
  ASSERT_EQ(cu.cuStreamWaitValue64(blocking, address, 1, 0), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamQuery(nullptr), CUDA_ERROR_NOT_READY);
  ASSERT_EQ(cu.cuMemsetD8Async(address + 64, 5, 8, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamQuery(nullptr), CUDA_ERROR_NOT_READY);
  ASSERT_EQ(Write(address, 1), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamQuery(blocking), CUDA_SUCCESS);
  EXPECT_EQ(Bytes(address + 64, 1)[0], 5);
}

TEST_F(Streams, ADestroyedOneFinishesItsWork) {
  CUstream brief = nullptr;
  ASSERT_EQ(cu.cuStreamCreate(&brief, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuStreamWaitValue64(brief, address, 1, 0), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuStreamWriteValue64(brief, address + 8, 5, 0), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamDestroy(brief), CUDA_SUCCESS);
  ASSERT_EQ(Write(address, 1), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(Word(address + 8), 5u);
}

TEST_F(Streams, CallHostFunctionsInOrder) {
  struct Seen {
    std::atomic<int> count{0};
    CUresult inner = CUDA_SUCCESS;
  } seen;
  const CUhostFn function = [](void* data) {
    auto* to = static_cast<Seen*>(data);
    int devices = 0;
    to->inner = TestDriver().table().cuDeviceGetCount(&devices);
    to->count = 1;
  };
  ASSERT_EQ(Wait(address, 1), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuLaunchHostFunc(stream, function, &seen), CUDA_SUCCESS);
  EXPECT_EQ(seen.count, 0) << "not before its turn";
  ASSERT_EQ(Write(address, 1), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_EQ(seen.count, 1);
  EXPECT_EQ(seen.inner, CUDA_ERROR_NOT_PERMITTED)
      << "a host function may not call the driver";
  EXPECT_EQ(cu.cuLaunchHostFunc(stream, nullptr, nullptr),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Streams, TheNullOneCannotBeDestroyed) {
  EXPECT_EQ(cu.cuStreamDestroy(nullptr), CUDA_ERROR_INVALID_HANDLE);
}

}  // namespace
}  // namespace vmm::testing
