// What memory of the driver's own pools and blocks does to a capture: one that no
// thread may touch it beside, unless that thread is relaxed. Measured on an H200
// with driver 580.
#include <cstdint>
#include <functional>

#include "tests/conformance/descriptors.h"
#include "tests/conformance/pool_test_base.h"
#include "tests/support/test_driver.h"

namespace vmm::testing {
namespace {

class BesideACapture : public PoolTest {
 protected:
  BesideACapture() : stream(MakeStream()), other(MakeStream()) {}

  void ExpectRefused(const char* name, const std::function<CUresult()>& call) {
    SCOPED_TRACE(name);
    for (const CUstreamCaptureMode mode :
         {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL}) {
      Begin(mode);
      EXPECT_EQ(call(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
      EXPECT_EQ(End(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    }
    Begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    EXPECT_EQ(cu.cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
    EXPECT_EQ(call(), CUDA_SUCCESS) << "on a relaxed thread";
    EXPECT_EQ(cu.cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
    EXPECT_EQ(End(), CUDA_SUCCESS) << "on a relaxed thread";
  }
  void ExpectTaken(const char* name, const std::function<CUresult()>& call) {
    SCOPED_TRACE(name);
    Begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
    EXPECT_EQ(call(), CUDA_SUCCESS);
    EXPECT_EQ(End(), CUDA_SUCCESS);
  }

  void Begin(CUstreamCaptureMode mode) {
    ASSERT_EQ(cu.cuStreamBeginCapture(stream, mode), CUDA_SUCCESS);
  }
  CUresult End() { return EndCapture(stream); }

  const CUstream stream;
  const CUstream other;
};

TEST_F(BesideACapture, PoolsAreRefused) {
  const CUmemoryPool pool = MakePool(kFd);
  CUdeviceptr block = Take(pool, kGranule, other);
  ASSERT_EQ(cu.cuStreamSynchronize(other), CUDA_SUCCESS);

  CUmemoryPool made = nullptr;
  const CUmemPoolProps props = PoolProperties(kFd);
  ExpectRefused("create", [&] { return cu.cuMemPoolCreate(&made, &props); });
  ExpectRefused("destroy", [&] { return cu.cuMemPoolDestroy(made); });
  ExpectRefused("trim", [&] { return cu.cuMemPoolTrimTo(pool, 0); });
  int fd = -1;
  ExpectRefused("export", [&] { return ExportPoolTo(cu, &fd, pool); });
  CUmemoryPool imported = nullptr;
  ExpectRefused("import", [&] {
    return cu.cuMemPoolImportFromShareableHandle(
        &imported, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)), kFd,
        0);
  });
  CloseDescriptor(fd);
  const CUmemAccessDesc access = Access(kReadWrite);
  ExpectRefused("set access",
                [&] { return cu.cuMemPoolSetAccess(pool, &access, 1); });
  CUmemAccess_flags flags{};
  CUmemLocation location = access.location;
  ExpectRefused("get access",
                [&] { return cu.cuMemPoolGetAccess(&flags, pool, &location); });
  std::uint64_t value = 0;
  ExpectRefused("set attribute", [&] {
    return Set(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, value);
  });
  ExpectRefused("get attribute", [&] {
    return cu.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT,
                                    &value);
  });
  CUmemPoolPtrExportData data{};
  ExpectRefused("export a pointer",
                [&] { return cu.cuMemPoolExportPointer(&data, block); });
  // On a stream that is not captured.
  ExpectRefused("free", [&] { return cu.cuMemFreeAsync(block, other); });
  ExpectRefused("allocate", [&] {
    return cu.cuMemAllocFromPoolAsync(&block, kGranule, pool, other);
  });
  EXPECT_EQ(cu.cuMemFreeAsync(block, other), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamSynchronize(other), CUDA_SUCCESS);
  if (imported != nullptr && imported != pool) {
    EXPECT_EQ(cu.cuMemPoolDestroy(imported), CUDA_SUCCESS);
  }
}

TEST_F(BesideACapture, ABlockOfBeforeIsNotFreedOnTheCapturedStream) {
  const CUmemoryPool pool = MakePool();
  const CUdeviceptr block = Take(pool, kGranule, other);
  ASSERT_EQ(cu.cuMemsetD8Async(block, 1, 8, other), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuStreamSynchronize(other), CUDA_SUCCESS);
  Begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
  EXPECT_EQ(cu.cuMemFreeAsync(block, stream), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(End(), CUDA_SUCCESS) << "the capture goes on";
  EXPECT_EQ(Word(block), 0x0101010101010101u);
  EXPECT_EQ(cu.cuMemFreeAsync(block, other), CUDA_SUCCESS) << "it is there";
  EXPECT_EQ(cu.cuStreamSynchronize(other), CUDA_SUCCESS);
}

TEST_F(BesideACapture, BlocksAndQuestionsAreRefused) {
  CUdeviceptr block = 0;
  ExpectRefused("allocate", [&] { return cu.cuMemAlloc(&block, kGranule); });
  ExpectRefused("free", [&] { return cu.cuMemFree(block); });
  void* host = nullptr;
  ExpectRefused("on the host",
                [&] { return cu.cuMemHostAlloc(&host, kGranule, 0); });
  ExpectRefused("free on the host", [&] { return cu.cuMemFreeHost(host); });
  const CUevent event = MakeEvent();
  ASSERT_EQ(cu.cuEventRecord(event, other), CUDA_SUCCESS);
  ExpectRefused("an event's end", [&] { return cu.cuEventSynchronize(event); });
  ExpectRefused("an event", [&] { return cu.cuEventQuery(event); });
  ExpectRefused("a stream", [&] { return cu.cuStreamQuery(other); });
  ExpectRefused("a stream's end",
                [&] { return cu.cuStreamSynchronize(other); });
}

TEST_F(BesideACapture, WhatTouchesNoMemoryIsTaken) {
  CUstream made = nullptr;
  ExpectTaken("stream",
              [&] { return cu.cuStreamCreate(&made, CU_STREAM_NON_BLOCKING); });
  CUcontext context = nullptr;
  ExpectTaken("its context", [&] { return cu.cuStreamGetCtx(made, &context); });
  CUevent event = nullptr;
  ExpectTaken("event", [&] {
    return cu.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
  });
  ExpectTaken("recorded", [&] { return cu.cuEventRecord(event, made); });
  ExpectTaken("destroyed", [&] { return cu.cuEventDestroy(event); });
  ExpectTaken("stream destroyed", [&] { return cu.cuStreamDestroy(made); });
  const CUdeviceptr address = Memory();
  int ordinal = -1;
  ExpectTaken("pointer", [&] {
    return cu.cuPointerGetAttribute(
        &ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address);
  });
  std::size_t free = 0;
  std::size_t total = 0;
  ExpectTaken("free memory", [&] { return cu.cuMemGetInfo(&free, &total); });
}

// The host-memory driver is the stricter one: whatever relies on a GPU's patience
// is to be found without one.
TEST_F(BesideACapture, VirtualMemoryIsTakenByAGpuAlone) {
  const auto expect = [this](const char* name,
                             const std::function<CUresult()>& call) {
    OnHostMemoryDriver() ? ExpectRefused(name, call) : ExpectTaken(name, call);
  };
  const CUmemAllocationProp prop = Properties();
  const CUmemAccessDesc access = Access(kReadWrite);
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr address = 0;
  expect("create", [&] { return cu.cuMemCreate(&handle, kGranule, &prop, 0); });
  expect("reserve",
         [&] { return cu.cuMemAddressReserve(&address, kGranule, 0, 0, 0); });
  expect("map", [&] { return cu.cuMemMap(address, kGranule, 0, handle, 0); });
  expect("set access",
         [&] { return cu.cuMemSetAccess(address, kGranule, &access, 1); });
  int fd = -1;
  expect("export", [&] { return ExportTo(cu, &fd, handle); });
  CloseDescriptor(fd);
  std::uint8_t byte = 0;
  expect("a copy that waits",
         [&] { return cu.cuMemcpyDtoH(&byte, address, 1); });
  expect("unmap", [&] { return cu.cuMemUnmap(address, kGranule); });
  expect("release", [&] { return cu.cuMemRelease(handle); });
  expect("free", [&] { return cu.cuMemAddressFree(address, kGranule); });
}

}  // namespace
}  // namespace vmm::testing
