// dma-bufs of allocations. On a GPU without them: that the refusal says so.
#include <gmock/gmock.h>

#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "platform/cuda/dma_buf.h"
#include "tests/gpu/stream.h"
#include "tests/gpu/vmm_driver_test.h"
#include "tests/support/child.h"
#include "tests/support/driver_faults.h"
#include "vmm/memory/allocation.h"
#include "vmm/memory/dma_buf.h"
#include "vmm/pool/pool.h"
#include "vmm/share/raw_handle.h"

namespace vmm::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class DmaBufTest : public DriverTest {
 protected:
  void SetUp() override {
    const absl::StatusOr<std::uint64_t> page = platform::DmaBufGranularity();
    if (!page.ok()) GTEST_SKIP() << page.status();
    page_ = *page;
    int supported = 0;
    ASSERT_EQ(driver()->cuDeviceGetAttribute(
                  &supported, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED,
                  device.cuda_device()),
              CUDA_SUCCESS);
    if (supported == 0) GTEST_SKIP() << "the device has no dma-buf";
  }
  // Three chunks, of which the last is smaller.
  Allocation Make() {
    return Must(Allocation::Create(
        device, {.size = 5 * kGranule, .max_chunk_size = 2 * kGranule}));
  }
  absl::Status Fails(const Allocation& memory, const DmaBufOptions& options) {
    return ExportDmaBufs(memory, options).status();
  }
  std::uint64_t page_ = 0;
};

TEST_F(DmaBufTest, AreOneForEachChunkOfTheRange) {
  const Allocation memory = Make();
  const std::vector<DmaBuf> all = Must(ExportDmaBufs(memory));
  ASSERT_EQ(all.size(), 3u);
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i].offset, i * 2 * kGranule);
    EXPECT_EQ(all[i].size, (i < 2 ? 2 : 1) * kGranule);
    EXPECT_TRUE(all[i].descriptor.has_value());
  }
  // From the end of the first chunk into the third.
  const std::vector<DmaBuf> part =
      Must(ExportDmaBufs(memory, {.offset = 2 * kGranule - page_,
                                  .size = 2 * kGranule + 2 * page_}));
  ASSERT_EQ(part.size(), 3u);
  EXPECT_EQ(part[0].offset, 2 * kGranule - page_);
  EXPECT_EQ(part[0].size, page_);
  EXPECT_EQ(part[1].offset, 2 * kGranule);
  EXPECT_EQ(part[1].size, 2 * kGranule);
  EXPECT_EQ(part[2].offset, 4 * kGranule);
  EXPECT_EQ(part[2].size, page_);
  EXPECT_EQ(Must(ExportDmaBufs(memory, {.offset = 4 * kGranule})).size(), 1u);
}

// As of a thread that a program has just started.
TEST_F(DmaBufTest, AreHadWithoutACurrentContextAndLeaveNone) {
  const Allocation memory = Make();
  std::thread([&] {
    CUcontext current = nullptr;
    ASSERT_EQ(driver()->cuCtxGetCurrent(&current), CUDA_SUCCESS);
    ASSERT_EQ(current, nullptr);
    EXPECT_EQ(Must(ExportDmaBufs(memory)).size(), 3u);
    ASSERT_EQ(driver()->cuCtxGetCurrent(&current), CUDA_SUCCESS);
    EXPECT_EQ(current, nullptr);
  }).join();
}

// As of a thread whose program has reset the device. Alone: what the tests keep
// of a context would keep it alive.
int DmaBufsBesideADeadContext(const std::vector<std::string>&) {
  const platform::Driver& driver = TestDriver();
  const Device device = FirstDevice();
  const Allocation memory =
      Must(Allocation::Create(device, {.size = kGranule}));
  CUcontext context = nullptr;
  const CUdevice here = device.cuda_device();
  EXPECT_EQ(driver->cuDevicePrimaryCtxRetain(&context, here), CUDA_SUCCESS);
  EXPECT_EQ(driver->cuCtxSetCurrent(context), CUDA_SUCCESS);
  EXPECT_EQ(driver->cuDevicePrimaryCtxRelease(here), CUDA_SUCCESS);
  EXPECT_FALSE(Must(PrimaryContext::IsActive(device)));
  EXPECT_EQ(Must(ExportDmaBufs(memory)).size(), 1u);
  EXPECT_EQ(Must(ExportDmaBufs(driver, memory.address(), kGranule)).size(), 1u);
  CUcontext after = nullptr;
  EXPECT_EQ(driver->cuCtxGetCurrent(&after), CUDA_SUCCESS);
  EXPECT_EQ(after, context);
  return ::testing::Test::HasFailure() ? 1 : 0;
}
const bool kDeadContext =
    RegisterChild("dma-bufs-beside-a-dead-context", &DmaBufsBesideADeadContext);

TEST_F(DmaBufTest, AreHadWhereTheCurrentContextWasDestroyed) {
  EXPECT_EQ(Child::Start("dma-bufs-beside-a-dead-context", {}).Wait(), 0);
}

TEST_F(DmaBufTest, OfARangeThatIsNotOfPagesOrLeavesTheMemoryIsRefused) {
  const Allocation memory = Make();
  for (const DmaBufOptions& options :
       {DmaBufOptions{.offset = 1, .size = page_},
        DmaBufOptions{.offset = 0, .size = page_ + 1}}) {
    const absl::Status status = Fails(memory, options);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("page size"));
  }
  for (const DmaBufOptions& options :
       {DmaBufOptions{.offset = 0, .size = memory.size() + page_},
        DmaBufOptions{.offset = memory.size()},
        DmaBufOptions{.offset = page_, .size = 0 - page_}}) {
    const absl::Status status = Fails(memory, options);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("leave the alloc"));
  }
}

TEST_F(DmaBufTest, OfMemoryOfTheHostIsRefused) {
  const Allocation host = Must(Allocation::Create(
      device, {.size = kGranule,
               .host_numa_node = 0,
               .also = {{Location::HostNuma(0), Access::kReadWrite}}}));
  const absl::Status refused = ExportDmaBufs(host).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(refused.message(), HasSubstr("memory of the host"));
}

TEST_F(DmaBufTest, OfUnmappedMemoryIsRefused) {
  Allocation memory = Make();
  ASSERT_TRUE(memory.Unmap().ok());
  EXPECT_EQ(Fails(memory, {}).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(DmaBufTest, LeaveNothingOpenWhenALaterChunkFails) {
  DriverFaults faults;
  const Device mine =
      Must(Device::ByOrdinal(FaultyDriver(driver(), &faults), 0));
  const Allocation memory = Must(Allocation::Create(
      mine, {.size = 4 * kGranule, .max_chunk_size = kGranule}));
  faults.Arm({.point = {.nth = 3},
              .entry = "cuMemGetHandleForAddressRange",
              .result = CUDA_ERROR_NOT_SUPPORTED});
  const absl::Status status = Fails(memory, {});
  EXPECT_EQ(faults.Disarm().fired, 1u);
  EXPECT_THAT(std::string(status.message()), HasSubstr(device.Describe()));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("cuMemGetHandleForAddressRange("));
  EXPECT_THAT(std::string(status.message()), HasSubstr("open kernel modules"));
  // The fixture sees that no descriptor is left.
}

TEST_F(DmaBufTest, OfAnyAddressAreOneForEachChunkOfTheRange) {
  const Allocation memory = Make();
  const CUdeviceptr begin = memory.address() + 2 * kGranule - page_;
  const std::vector<DmaBuf> part =
      Must(ExportDmaBufs(driver(), begin, 2 * kGranule + 2 * page_));
  ASSERT_EQ(part.size(), 3u);
  EXPECT_EQ(part[0].offset, 0u);
  EXPECT_EQ(part[0].size, page_);
  EXPECT_EQ(part[1].offset, page_);
  EXPECT_EQ(part[1].size, 2 * kGranule);
  EXPECT_EQ(part[2].offset, page_ + 2 * kGranule);
  EXPECT_EQ(part[2].size, page_);
  for (const DmaBuf& each : part) EXPECT_TRUE(each.descriptor.has_value());
  // The pages around less.
  const std::vector<DmaBuf> less =
      Must(ExportDmaBufs(driver(), begin + page_ - 1, 2));
  ASSERT_EQ(less.size(), 2u);
  EXPECT_EQ(less[0].offset, 0u);
  EXPECT_EQ(less[0].size, page_);
  EXPECT_EQ(less[1].offset, page_);
  EXPECT_EQ(less[1].size, page_);
}

TEST_F(DmaBufTest, OfAPoolsBlockAndOfTheDriversAllocatorsAreHad) {
  const std::unique_ptr<Pool> pool = Must(Pool::Create(device, {}));
  const Stream stream;
  const CUdeviceptr block = Must(pool->Allocate(3 * kGranule, stream.get()));
  const CUdeviceptr page = block / page_ * page_;
  EXPECT_EQ(Must(ExportDmaBufs(driver(), page, page_)).size(), 1u);
  EXPECT_EQ(Must(ExportDmaBufs(driver(), page, 2 * kGranule)).size(), 1u);
  Must(pool->Free(block, stream.get()));
  stream.Sync();
  CUdeviceptr other = 0;
  ASSERT_EQ(driver()->cuMemAlloc(&other, kGranule), CUDA_SUCCESS);
  EXPECT_EQ(Must(ExportDmaBufs(driver(), other, kGranule)).size(), 1u);
  ASSERT_EQ(driver()->cuMemFree(other), CUDA_SUCCESS);
  // Less than a page, beside others.
  ASSERT_EQ(driver()->cuMemAlloc(&other, 100), CUDA_SUCCESS);
  EXPECT_EQ(Must(ExportDmaBufs(driver(), other / page_ * page_, page_)).size(),
            1u);
  const absl::Status beyond =
      ExportDmaBufs(driver(), other / page_ * page_, 64 * kGranule).status();
  EXPECT_TRUE(absl::IsInvalidArgument(beyond)) << beyond;
  EXPECT_THAT(std::string(beyond.message()),
              HasSubstr("that one call of this process"));
  ASSERT_EQ(driver()->cuMemFree(other), CUDA_SUCCESS);
  ASSERT_EQ(driver()->cuMemAllocAsync(&other, kGranule, stream.get()),
            CUDA_SUCCESS);
  stream.Sync();
  EXPECT_EQ(Must(ExportDmaBufs(driver(), other, kGranule)).size(), 1u);
  ASSERT_EQ(driver()->cuMemFreeAsync(other, stream.get()), CUDA_SUCCESS);
  stream.Sync();
}

// And of nothing else of it, but with what lies before.
TEST_F(DmaBufTest, OfAStreamOrderedPoolBeginWhereItGotItsMemory) {
  const Stream stream;
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUmemoryPool pool = nullptr;
  ASSERT_EQ(driver()->cuMemPoolCreate(&pool, &props), CUDA_SUCCESS);
  CUdeviceptr first = 0;
  CUdeviceptr second = 0;
  for (CUdeviceptr* block : {&first, &second}) {
    ASSERT_EQ(
        driver()->cuMemAllocFromPoolAsync(block, kGranule, pool, stream.get()),
        CUDA_SUCCESS);
  }
  stream.Sync();
  ASSERT_EQ(second, first + kGranule);
  EXPECT_EQ(Must(ExportDmaBufs(driver(), first, 2 * kGranule)).size(), 1u);
  const absl::Status middle =
      ExportDmaBufs(driver(), second, kGranule).status();
  EXPECT_TRUE(absl::IsInvalidArgument(middle)) << middle;
  std::size_t piece = 0;
  ASSERT_EQ(driver()->cuPointerGetAttribute(
                &piece, CU_POINTER_ATTRIBUTE_MAPPING_SIZE, second),
            CUDA_SUCCESS);
  EXPECT_THAT(std::string(middle.message()),
              HasSubstr(absl::StrCat("export the ", piece, " bytes at 0x",
                                     absl::Hex(first))));
  EXPECT_EQ(Must(ExportDmaBufs(driver(), first, piece)).size(), 1u);
  for (const CUdeviceptr block : {first, second}) {
    ASSERT_EQ(driver()->cuMemFreeAsync(block, stream.get()), CUDA_SUCCESS);
  }
  stream.Sync();
  ASSERT_EQ(driver()->cuMemPoolDestroy(pool), CUDA_SUCCESS);
}

TEST_F(DmaBufTest, OfWhatHasNoneAreRefusedWithTheReason) {
  const Allocation memory = Make();
  const auto refused = [&](CUdeviceptr address, std::uint64_t size) {
    return ExportDmaBufs(driver(), address, size).status();
  };
  const auto expect = [](const absl::Status& status, absl::StatusCode code,
                         const char* text) {
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  };
  const CUdeviceptr at = memory.address();
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  constexpr auto kFailed = absl::StatusCode::kFailedPrecondition;
  expect(refused(at, 0), kInvalid, "at least 1");
  expect(refused(at, 0 - page_), kInvalid, "the address space");
  expect(refused(at, memory.size() + (std::uint64_t{1} << 36)), kInvalid,
         "nothing of the driver's is mapped at");
  void* pinned = nullptr;
  ASSERT_EQ(driver()->cuMemHostAlloc(&pinned, page_, 0), CUDA_SUCCESS);
  expect(refused(reinterpret_cast<CUdeviceptr>(pinned), page_), kFailed,
         "expected memory of a device");
  ASSERT_EQ(driver()->cuMemFreeHost(pinned), CUDA_SUCCESS);
  expect(refused(page_, page_), kInvalid, "is not CUDA's");
  const Allocation host =
      Must(Allocation::Create(device, {.size = kGranule, .host_numa_node = 0}));
  expect(refused(host.address(), page_), kFailed, "is of the host");
}

// A dma-buf gives whole access.
TEST_F(DmaBufTest, OfMemoryThatNobodyHereMayWriteAreRefused) {
  Allocation memory = Make();
  Must(memory.SetAccess({{Location::On(device), Access::kRead}}));
  const absl::Status readable =
      ExportDmaBufs(driver(), memory.address(), memory.size()).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(readable)) << readable;
  EXPECT_THAT(readable.message(), HasSubstr("mapped for reading alone on"));
  Must(memory.SetAccess({{Location::On(device), Access::kNone}}));
  const absl::Status unseen =
      ExportDmaBufs(driver(), memory.address(), memory.size()).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(unseen)) << unseen;
  EXPECT_THAT(unseen.message(), HasSubstr("no device that this process sees"));
}

TEST_F(DmaBufTest, OfAnAllocationThatItsDeviceMayNotWriteAreRefused) {
  Allocation memory = Make();
  const auto expect = [&](Access access, const char* text) {
    Must(memory.SetAccess({{Location::On(device), access}}));
    // Also of a part of it.
    for (const std::uint64_t offset : {std::uint64_t{0}, 2 * kGranule}) {
      const absl::Status status = Fails(memory, {.offset = offset});
      EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(text));
    }
  };
  expect(Access::kRead, "is mapped for reading alone on");
  expect(Access::kNone, "is mapped without access for");
  Must(memory.SetAccess({{Location::On(device), Access::kReadWrite}}));
  EXPECT_EQ(Must(ExportDmaBufs(memory)).size(), 3u);
}

TEST_F(DmaBufTest, WhatTheDriverDoesNotSayOfTheRangeIsTold) {
  DriverFaults faults;
  const platform::Driver faulty = FaultyDriver(driver(), &faults);
  const Allocation memory = Make();
  const auto fails = [&](const char* entry, std::uint64_t nth,
                         CUresult result) {
    faults.Arm({.point = {.nth = nth}, .entry = entry, .result = result});
    const absl::Status status =
        ExportDmaBufs(faulty, memory.address(), memory.size()).status();
    EXPECT_EQ(faults.Disarm().fired, 1u) << entry;
    return status;
  };
  // Which device reaches it, and how its second chunk is mapped there.
  for (const std::uint64_t nth : {0, 2}) {
    const absl::Status access =
        fails("cuMemGetAccess", nth, CUDA_ERROR_INVALID_DEVICE);
    EXPECT_EQ(platform::ResultOf(access), CUDA_ERROR_INVALID_DEVICE);
    EXPECT_THAT(access.message(), HasSubstr("cuMemGetAccess("));
  }
  // It is the context that is lost, and no wrong address.
  const absl::Status lost =
      fails("cuMemGetAddressRange", 1, CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(platform::ResultOf(lost), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_FALSE(absl::IsInvalidArgument(lost)) << lost;
  EXPECT_THAT(lost.message(), HasSubstr("cuMemGetAddressRange("));
  const absl::Status unmapped =
      fails("cuMemGetAddressRange", 1, CUDA_ERROR_NOT_FOUND);
  EXPECT_TRUE(absl::IsInvalidArgument(unmapped)) << unmapped;
  EXPECT_THAT(unmapped.message(), HasSubstr("nothing of the driver's"));
  // No remedy for another kind of memory: there is no room.
  const absl::Status full =
      fails("cuMemGetHandleForAddressRange", 1, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  EXPECT_THAT(full.message(), Not(HasSubstr("open kernel modules")));
}

// It is for network cards and not for CUDA.
TEST_F(DmaBufTest, IsNoHandleOfMemory) {
  if (OnHostMemoryDriver()) {
    GTEST_SKIP() << "the model's dma-bufs are descriptors of its memory";
  }
  const Allocation memory =
      Must(Allocation::Create(device, {.size = kGranule}));
  std::vector<DmaBuf> bufs = Must(ExportDmaBufs(memory));
  std::vector<RawHandle> raw;
  raw.push_back({kNativeKind, kGranule, std::move(bufs.front().descriptor)});
  const absl::Status refused =
      ImportRaw(device, Location::On(device), std::move(raw), {}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()),
              ::testing::HasSubstr("expected GPU memory exported by the NVIDIA "
                                   "driver"));
}

TEST_F(DmaBufTest, OverPcieAreHadOrRefusedWithAReason) {
  const Allocation memory = Make();
  const absl::StatusOr<std::vector<DmaBuf>> parts =
      ExportDmaBufs(memory, {.mapping = DmaBufMapping::kPcie});
  if (parts.ok()) {
    EXPECT_EQ(parts->size(), 3u);
    return;
  }
  EXPECT_THAT(std::string(parts.status().message()),
              HasSubstr("DmaBufMapping::kDefault"));
  std::printf("PCIe mapping: %s\n",
              std::string(parts.status().message()).c_str());
}

// As a H100 (580) answers to the mapping over PCIe.
TEST_F(DmaBufTest, OverPcieThatIsRefusedNamesTheOtherMapping) {
  DriverFaults faults;
  const platform::Driver faulty = FaultyDriver(TestDriver(), &faults);
  const Allocation memory = Must(Allocation::Create(
      Must(Device::ByOrdinal(faulty, device.ordinal())), {.size = 1}));
  faults.Arm({.entry = "cuMemGetHandleForAddressRange",
              .result = CUDA_ERROR_NOT_SUPPORTED});
  const absl::Status refused =
      ExportDmaBufs(memory, {.mapping = DmaBufMapping::kPcie}).status();
  EXPECT_EQ(faults.Disarm().fired, 1u);
  EXPECT_TRUE(absl::IsUnimplemented(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("DmaBufMapping::kDefault"));
}

// On a machine without.
int NoDmaBuf(const std::vector<std::string>&) {
  const Allocation memory =
      Must(Allocation::Create(FirstDevice(), {.size = 1}));
  const absl::Status status = ExportDmaBufs(memory).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("DMA_BUF_SUPPORTED"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("nvidia_peermem"));
  return ::testing::Test::HasFailure() ? 1 : 0;
}
const bool kNoDmaBuf = RegisterChild("no-dma-buf", &NoDmaBuf);

TEST_F(DmaBufTest, AreRefusedWithTheRemedyWhereTheDeviceHasNone) {
  if (!OnHostMemoryDriver()) GTEST_SKIP() << "models are the host driver's";
  EXPECT_EQ(
      Child::Start("no-dma-buf", {}, {{"VMMSHARE_HOST_DMA_BUF", "0"}}).Wait(),
      0);
}

}  // namespace
}  // namespace vmm::testing
