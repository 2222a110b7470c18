// Pool in one process: what is allocated where, and when it is used again.
#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/gpu/changed_driver.h"
#include "tests/gpu/held_stream.h"
#include "tests/gpu/stream.h"
#include "tests/gpu/vmm_driver_test.h"
#include "tests/support/driver_faults.h"
#include "vmm/pool/pool.h"

namespace vmm::testing {
namespace {

using platform::DriverTable;
using ::testing::AllOf;
using ::testing::HasSubstr;

absl::Time Soon() { return absl::Now() + absl::Seconds(20); }

std::uint64_t RoundUpTo2Mib(std::uint64_t size) {
  return (size + 2 * kMiB - 1) / (2 * kMiB) * (2 * kMiB);
}

class PoolTest : public DriverTest {
 protected:
  void SetUp() override {
    if (!driver().Need<&DriverTable::cuStreamWaitValue64>().ok()) {
      GTEST_SKIP() << "this driver cannot hold a stream";
    }
  }

  std::unique_ptr<Pool> Make(PoolOptions options = {}) {
    if (options.first_segment_size == PoolOptions().first_segment_size) {
      options.first_segment_size = 4 * kMiB;
      options.max_segment_size = 64 * kMiB;
    }
    return Must(Pool::Create(device, options));
  }
  static CUdeviceptr Allocate(Pool& pool, std::uint64_t size,
                              CUstream stream = nullptr,
                              const BlockOptions& options = {}) {
    return Must(pool.Allocate(size, stream, options));
  }
  static void Free(Pool& pool, CUdeviceptr block, CUstream stream = nullptr) {
    const absl::Status freed = pool.Free(block, stream);
    EXPECT_TRUE(freed.ok()) << freed;
  }
  static void ExpectWhole(const Pool& pool) {
    const absl::Status whole = pool.CheckInvariants();
    EXPECT_TRUE(whole.ok()) << whole;
  }
  // All of it is back at the driver.
  static void ExpectEmpty(Pool& pool) {
    ExpectWhole(pool);
    EXPECT_EQ(pool.statistics().live, 0u);
    EXPECT_EQ(pool.statistics().requested, 0u);
    Must(pool.Trim());
    EXPECT_EQ(pool.statistics().reserved, 0u) << pool.statistics().last_error;
  }
  void Sync(CUstream stream) {
    EXPECT_EQ(driver()->cuStreamSynchronize(stream), CUDA_SUCCESS);
  }
  // What is put on the current context's legacy stream from now on waits for
  // `held`.
  void HoldTheLegacyStream(const HeldStream& held) {
    CUevent event = nullptr;
    ASSERT_EQ(driver()->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING),
              CUDA_SUCCESS);
    EXPECT_EQ(driver()->cuEventRecord(event, held.get()), CUDA_SUCCESS);
    EXPECT_EQ(driver()->cuStreamWaitEvent(CU_STREAM_LEGACY, event, 0),
              CUDA_SUCCESS);
    EXPECT_EQ(driver()->cuEventDestroy(event), CUDA_SUCCESS);
  }
};

TEST_F(PoolTest, BlocksAreApartAlignedAndWritable) {
  const std::unique_ptr<Pool> pool = Make();
  EXPECT_EQ(pool->statistics().reserved, 0u);
  std::vector<std::pair<CUdeviceptr, std::uint64_t>> blocks;
  for (std::uint64_t size : {1, 255, 256, 257, 4096, 65536, 1 << 20}) {
    blocks.emplace_back(Allocate(*pool, size), size);
    EXPECT_EQ(blocks.back().first % 256, 0u);
  }
  std::uint8_t value = 1;
  for (const auto& [at, size] : blocks) Fill(at, value++, size);
  value = 1;
  for (const auto& [at, size] : blocks) EXPECT_TRUE(Holds(at, value++, size));
  const PoolStatistics now = pool->statistics();
  EXPECT_EQ(now.live_blocks, 7u);
  EXPECT_EQ(now.requested, 1u + 255 + 256 + 257 + 4096 + 65536 + (1 << 20));
  EXPECT_EQ(now.live, 256u * 3 + 512 + 4096 + 65536 + (1 << 20));
  EXPECT_EQ(now.reserved, 4 * kMiB);
  EXPECT_EQ(now.live + now.free + now.cached, now.reserved);
  EXPECT_EQ(now.segments.size(), 1u);
  for (const auto& [at, size] : blocks) Free(*pool, at);
  ExpectEmpty(*pool);
}

TEST_F(PoolTest, ABlockIsUsedAgainAtOnceOnItsStream) {
  const std::unique_ptr<Pool> pool = Make();
  for (std::uint64_t size : {4096, 65536, 1 << 20, 3 << 20}) {
    HeldStream stream(device);
    const CUdeviceptr block = Allocate(*pool, size, stream.get());
    ASSERT_EQ(driver()->cuMemsetD8Async(block, 1, size, stream.get()),
              CUDA_SUCCESS);
    Free(*pool, block, stream.get());
    EXPECT_EQ(Allocate(*pool, size, stream.get()), block);
    Free(*pool, block, stream.get());
    stream.Release();
    EXPECT_TRUE(pool->ReleaseStream(stream.get(), Soon()).ok());
  }
  ExpectEmpty(*pool);
}

TEST_F(PoolTest, FreedMemoryIsSplitAndMergedAtOnceOnItsStream) {
  const std::unique_ptr<Pool> pool = Make({.first_segment_size = 4 * kMiB,
                                           .max_segment_size = 4 * kMiB,
                                           .cap = 4 * kMiB});
  HeldStream stream(device);
  // All of the segment, in pieces of changing size, while the GPU stands still.
  for (std::uint64_t size : {256 * 1024, 64 * 1024, 512 * 1024, 1 << 20}) {
    std::vector<CUdeviceptr> blocks;
    for (std::uint64_t taken = 0; taken < 4 * kMiB; taken += size) {
      blocks.push_back(Allocate(*pool, size, stream.get()));
    }
    for (CUdeviceptr block : blocks) Free(*pool, block, stream.get());
  }
  ExpectWhole(*pool);
  stream.Release();
  EXPECT_TRUE(pool->ReleaseStream(stream.get(), Soon()).ok());
  ExpectEmpty(*pool);
}

TEST_F(PoolTest, AnotherStreamGetsABlockOnlyAfterTheGpuHasPassed) {
  const std::unique_ptr<Pool> pool =
      Make({.first_segment_size = 4 * kMiB, .max_segment_size = 4 * kMiB});
  HeldStream held(device);
  Stream other;
  const std::uint64_t size = 4 * kMiB;
  const CUdeviceptr block = Allocate(*pool, size, held.get());
  ASSERT_EQ(driver()->cuMemsetD8Async(block, 1, size, held.get()),
            CUDA_SUCCESS);
  Free(*pool, block, held.get());
  const CUdeviceptr second = Allocate(*pool, size, other.get());
  EXPECT_NE(second, block) << "the GPU still writes to it";
  Free(*pool, second, other.get());
  held.Release();
  Sync(held.get());
  // Now that it has passed, both serve the other stream without growing.
  const std::uint64_t reserved = pool->statistics().reserved;
  const CUdeviceptr third = Allocate(*pool, size, other.get());
  const CUdeviceptr fourth = Allocate(*pool, size, other.get());
  EXPECT_EQ(pool->statistics().reserved, reserved);
  EXPECT_TRUE(third == block || fourth == block);
  Free(*pool, third, other.get());
  Free(*pool, fourth, other.get());
  EXPECT_TRUE(pool->ReleaseStream(held.get(), Soon()).ok());
  EXPECT_TRUE(pool->ReleaseStream(other.get(), Soon()).ok());
  ExpectEmpty(*pool);
}

TEST_F(PoolTest, EachBlockThatTheCpuReachesCanBeFilled) {
  if (driver().version() < 12020) {
    GTEST_SKIP() << "memory of the host came with CUDA 12.2";
  }
  const std::unique_ptr<Pool> pool = Must(Pool::Create(
      device, {.first_segment_size = 2 * kMiB,
               .max_segment_size = 2 * kMiB,
               .also = {{Location::HostNuma(0), Access::kReadWrite}},
               .host_numa_node = 0}));
  std::vector<CUdeviceptr> blocks;
  for (const std::uint64_t size : {kMiB, 3 * kMiB, 4 * kMiB, kMiB / 2}) {
    blocks.push_back(Allocate(*pool, size));
    Fill(blocks.back(), static_cast<std::uint8_t>(blocks.size()), size);
    EXPECT_TRUE(
        Holds(blocks.back(), static_cast<std::uint8_t>(blocks.size()), size));
  }
  for (const CUdeviceptr block : blocks) Free(*pool, block);
  ExpectEmpty(*pool);
}

TEST_F(PoolTest, ABlockFreedOnAnotherStreamWaitsForThat) {
  const std::unique_ptr<Pool> pool =
      Make({.first_segment_size = 4 * kMiB, .max_segment_size = 4 * kMiB});
  HeldStream held(device);
  Stream home;
  const CUdeviceptr block = Allocate(*pool, 4 * kMiB, home.get());
  ASSERT_EQ(driver()->cuMemsetD8Async(block, 1, 4 * kMiB, held.get()),
            CUDA_SUCCESS);
  Free(*pool, block, held.get());
  // The stream that it was freed on may have it at once, its own may not.
  EXPECT_EQ(Allocate(*pool, 4 * kMiB, held.get()), block);
  Free(*pool, block, held.get());
  const CUdeviceptr second = Allocate(*pool, 4 * kMiB, home.get());
  EXPECT_NE(second, block);
  EXPECT_EQ(pool->statistics().pending, 4 * kMiB);
  Free(*pool, second, home.get());
  held.Release();
  Sync(held.get());
  EXPECT_TRUE(pool->ReleaseStream(held.get(), Soon()).ok());
  EXPECT_TRUE(pool->ReleaseStream(home.get(), Soon()).ok());
  ExpectEmpty(*pool);
}

TEST_F(PoolTest, AtTheCapAStreamWaitsOnTheGpuForAnothers) {
  const std::unique_ptr<Pool> pool = Make({.first_segment_size = 4 * kMiB,
                                           .max_segment_size = 4 * kMiB,
                                           .cap = 4 * kMiB});
  HeldStream held(device);
  Stream other;
  const CUdeviceptr block = Allocate(*pool, 4 * kMiB, held.get());
  ASSERT_EQ(driver()->cuMemsetD8Async(block, 1, 4 * kMiB, held.get()),
            CUDA_SUCCESS);
  Free(*pool, block, held.get());
  // At once for the host; the GPU keeps the order.
  EXPECT_EQ(Allocate(*pool, 4 * kMiB, other.get()), block);
  ASSERT_EQ(driver()->cuMemsetD8Async(block, 2, 4 * kMiB, other.get()),
            CUDA_SUCCESS);
  EXPECT_EQ(driver()->cuStreamQuery(other.get()), CUDA_ERROR_NOT_READY);
  held.Release();
  Sync(other.get());
  EXPECT_TRUE(Holds(block, 2, 4 * kMiB));
  Free(*pool, block, other.get());
  ExpectWhole(*pool);
}

TEST_F(PoolTest, AlignsAsAsked) {
  const std::unique_ptr<Pool> pool = Make();
  std::vector<CUdeviceptr> blocks;
  for (std::uint64_t alignment = 1; alignment <= 64 * kMiB; alignment *= 2) {
    blocks.push_back(Allocate(*pool, 300, nullptr, {.alignment = alignment}));
    EXPECT_EQ(blocks.back() % alignment, 0u) << alignment;
    blocks.push_back(Allocate(*pool, 300));
  }
  for (CUdeviceptr block : blocks) Free(*pool, block);
  for (std::uint64_t wrong : {0, 3, 768}) {
    EXPECT_EQ(
        pool->Allocate(300, nullptr, {.alignment = wrong}).status().code(),
        absl::StatusCode::kInvalidArgument)
        << wrong;
  }
  ExpectEmpty(*pool);
}

TEST_F(PoolTest, GrowsByA24thAndFromOneGibOnByA16th) {
  const std::unique_ptr<Pool> pool = Must(Pool::Create(device, {}));
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 100; ++i) blocks.push_back(Allocate(*pool, 16 * kMiB));
  std::uint64_t before = 0;
  for (const SegmentStatistics& segment : pool->statistics().segments) {
    const std::uint64_t part = before / (before < 1024 * kMiB ? 24 : 16);
    EXPECT_EQ(segment.size, std::max(32 * kMiB, RoundUpTo2Mib(part)))
        << "beside " << before;
    before += segment.size;
  }
  EXPECT_GT(before, 1600 * kMiB);
  for (CUdeviceptr block : blocks) Free(*pool, block);
  ExpectEmpty(*pool);
}

TEST_F(PoolTest, SegmentsAreAsLargeAsIsNeededAndLargeRequestsGetWhatTheyLack) {
  const std::unique_ptr<Pool> pool =
      Make({.first_segment_size = 4 * kMiB, .max_segment_size = 16 * kMiB});
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 128; ++i) blocks.push_back(Allocate(*pool, 1 * kMiB));
  for (const SegmentStatistics& segment : pool->statistics().segments) {
    EXPECT_GE(segment.size, 4 * kMiB);
    EXPECT_LE(segment.size, 6 * kMiB) << "a 24th of what there is";
  }
  const PoolStatistics before = pool->statistics();
  EXPECT_LE(before.reserved, 134 * kMiB);
  // It begins in what is free at the end.
  blocks.push_back(Allocate(*pool, 33 * kMiB));
  const std::uint64_t lacked = 33 * kMiB - before.free;
  EXPECT_EQ(pool->statistics().segments.back().size, RoundUpTo2Mib(lacked));
  Fill(blocks.back(), 7, 33 * kMiB);
  EXPECT_TRUE(Holds(blocks.back(), 7, 33 * kMiB));
  for (CUdeviceptr block : blocks) Free(*pool, block);
  EXPECT_GT(Must(pool->Trim(20 * kMiB)), 100 * kMiB);
  EXPECT_LE(pool->statistics().reserved, 20 * kMiB);
  // As small as at first.
  Must(pool->Trim());
  Free(*pool, Allocate(*pool, 4096));
  EXPECT_EQ(pool->statistics().reserved, 4 * kMiB);
  ExpectEmpty(*pool);
}

TEST_F(PoolTest, BadFreesAreToldApartAndChangeNothing) {
  const std::unique_ptr<Pool> pool = Make();
  const std::unique_ptr<Pool> other = Make();
  const CUdeviceptr block = Allocate(*pool, 70000);
  const CUdeviceptr foreign = Allocate(*other, 70000);
  Fill(block, 7, 70000);

  const absl::Status of_other = pool->Free(foreign, nullptr);
  EXPECT_EQ(of_other.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(of_other.message(), HasSubstr("not in this pool"));
  EXPECT_EQ(pool->Free(0, nullptr).code(), absl::StatusCode::kInvalidArgument);

  for (std::uint64_t inside : {1, 256, 69999, 70143}) {
    const absl::Status interior = pool->Free(block + inside, nullptr);
    EXPECT_EQ(interior.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(interior.message(),
                HasSubstr(absl::StrCat(inside, " bytes into the block at 0x")));
  }
  EXPECT_EQ(pool->Free(block + 70144, nullptr).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(pool->statistics().live_blocks, 1u);
  EXPECT_TRUE(Holds(block, 7, 70000));

  Free(*pool, block);
  const absl::Status twice = pool->Free(block, nullptr);
  EXPECT_EQ(twice.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(twice.message(), HasSubstr("freed already"));
  Must(pool->Trim(64 * kMiB));  // Merged: its record is gone.
  EXPECT_EQ(pool->Free(block, nullptr).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(pool->Export(block).status().code(),
            absl::StatusCode::kFailedPrecondition);
  Free(*other, foreign);
  ExpectEmpty(*pool);
  ExpectEmpty(*other);
}

TEST_F(PoolTest, RefusesWhatMakesNoSense) {
  const std::unique_ptr<Pool> pool = Make();
  using Code = absl::StatusCode;
  EXPECT_EQ(pool->Allocate(0, nullptr).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(pool->Allocate(~std::uint64_t{0}, nullptr).status().code(),
            Code::kInvalidArgument);
  // Rounded up to what the driver maps these are larger than any heap.
  const std::uint64_t most = (std::uint64_t{1} << 40) - 2 * kMiB;
  for (std::uint64_t size : {most + 1, most + 2 * kMiB - 256}) {
    EXPECT_EQ(pool->Allocate(size, nullptr).status().code(),
              Code::kInvalidArgument)
        << size;
  }
  EXPECT_EQ(pool->Allocate(most, nullptr).status().code(),
            Code::kResourceExhausted);
  EXPECT_EQ(pool->Allocate(64, CU_STREAM_PER_THREAD).status().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(
      pool->Allocate(64, nullptr, {.domain = SharingDomain{1}}).status().code(),
      Code::kInvalidArgument);
  const CUdeviceptr block = Allocate(*pool, 64);
  EXPECT_EQ(pool->Free(block, CU_STREAM_PER_THREAD).code(),
            Code::kInvalidArgument);
  EXPECT_EQ(pool->Reserve(64, CU_STREAM_PER_THREAD).code(),
            Code::kInvalidArgument);
  EXPECT_EQ(
      pool->ReleaseStream(CU_STREAM_PER_THREAD, absl::InfinitePast()).code(),
      Code::kInvalidArgument);
  EXPECT_EQ(
      pool->Order(CU_STREAM_PER_THREAD, nullptr, absl::InfinitePast()).code(),
      Code::kInvalidArgument);
  EXPECT_EQ(
      pool->Order(nullptr, CU_STREAM_PER_THREAD, absl::InfinitePast()).code(),
      Code::kInvalidArgument);
  Free(*pool, block);
  for (const PoolOptions& wrong : {PoolOptions{.first_segment_size = 0},
                                   PoolOptions{.first_segment_size = kMiB},
                                   PoolOptions{.first_segment_size = 3 * kMiB},
                                   PoolOptions{.max_segment_size = 65 * kMiB},
                                   PoolOptions{.max_segment_size = 1ull << 41},
                                   PoolOptions{.first_segment_size = 4 * kMiB,
                                   .max_segment_size = 2 * kMiB},
                                   PoolOptions{.cap = 1}}) {
    EXPECT_EQ(Pool::Create(device, wrong).status().code(),
              Code::kInvalidArgument);
  }
  PoolOptions unreachable;
  unreachable.also = {{Location::HostNuma(0), Access::kRead}};
  EXPECT_EQ(Pool::Create(device, unreachable).status().code(),
            Code::kFailedPrecondition);
}

// As Python does: it names the legacy stream, and no context is current.
TEST_F(PoolTest, WhatWasFreedOnTheLegacyStreamComesBackWithoutAContext) {
  const std::unique_ptr<Pool> pool = Must(Pool::Create(device, {}));
  std::thread([&] {
    for (CUstream stream : {CU_STREAM_LEGACY, CUstream{nullptr}}) {
      EXPECT_TRUE(pool->Free(Must(pool->Allocate(kMiB, stream)), stream).ok());
      EXPECT_GT(Must(pool->Trim()), 0u);
      EXPECT_EQ(pool->statistics().reserved, 0u);
    }
  }).join();
  EXPECT_TRUE(pool->statistics().last_error.ok())
      << pool->statistics().last_error;
}

// Work on the primary context's default stream is waited for all the same.
TEST_F(PoolTest, TheLegacyStreamsWorkIsSeenWithoutAContext) {
  if (!driver().Need<&platform::DriverTable::cuStreamWaitValue64>().ok()) {
    GTEST_SKIP() << "this driver cannot hold a stream";
  }
  HeldStream held(device);
  const std::unique_ptr<Pool> pool = Must(Pool::Create(device, {}));
  const CUdeviceptr block = Must(pool->Allocate(kMiB, CU_STREAM_LEGACY));
  HoldTheLegacyStream(held);
  EXPECT_TRUE(pool->Free(block, CU_STREAM_LEGACY).ok());
  std::thread([&] { EXPECT_EQ(Must(pool->Trim()), 0u); }).join();
  held.Release();
  EXPECT_EQ(driver()->cuStreamSynchronize(CU_STREAM_LEGACY), CUDA_SUCCESS);
  std::thread([&] { EXPECT_GT(Must(pool->Trim()), 0u); }).join();
}

// A default stream is that of the pool's own context, whichever context is
// current where the pool asks after it. That of another device has no work.
TEST_F(PoolTest, TheLegacyStreamsWorkIsSeenFromAnotherDevicesContext) {
  const std::vector<Device> all = Must(Device::All(driver()));
  if (all.size() < 2) GTEST_SKIP() << "one device is visible, two are needed";
  HeldStream held(device);
  const std::unique_ptr<Pool> pool = Make();
  // Each has a segment of its own.
  const CUdeviceptr legacy = Allocate(*pool, 4 * kMiB, CU_STREAM_LEGACY);
  const CUdeviceptr null = Allocate(*pool, 4 * kMiB, nullptr);
  HoldTheLegacyStream(held);
  Free(*pool, legacy, CU_STREAM_LEGACY);
  Free(*pool, null, nullptr);
  const auto trim_elsewhere = [&] {
    std::uint64_t released = 0;
    std::thread([&] {
      const PrimaryContext other = Must(PrimaryContext::Retain(all[1]));
      const CurrentContext current = Must(other.MakeCurrent());
      released = Must(pool->Trim());
    }).join();
    return released;
  };
  EXPECT_EQ(trim_elsewhere(), 0u) << "the GPU may still use it";
  held.Release();
  Sync(CU_STREAM_LEGACY);
  EXPECT_EQ(trim_elsewhere(), 8 * kMiB);
  ExpectEmpty(*pool);
}

// Whether a driver says that the primary context is not active, as where the
// program has made one of its own.
bool has_no_primary = false;

// Reserve() is the first to grow it, so that nothing that comes later does.
TEST_F(PoolTest, APoolThatReservesFirstKnowsWhoseTheLegacyStreamIs) {
  platform::DriverTable table = TestDriver().table();
  table.cuDevicePrimaryCtxGetState = [](CUdevice of, unsigned* flags,
                                        int* active) {
    const CUresult r =
        TestDriver()->cuDevicePrimaryCtxGetState(of, flags, active);
    if (has_no_primary) *active = 0;
    return r;
  };
  const Device its = Must(Device::ByOrdinal(ChangedDriver(table), 0));
  HeldStream held(device);
  const std::unique_ptr<Pool> pool = Must(Pool::Create(
      its, {.first_segment_size = 4 * kMiB, .max_segment_size = 4 * kMiB}));
  has_no_primary = true;
  EXPECT_EQ(pool->Reserve(4 * kMiB, CU_STREAM_LEGACY), absl::OkStatus());
  const CUdeviceptr block = Allocate(*pool, 4 * kMiB, CU_STREAM_LEGACY);
  EXPECT_EQ(pool->statistics().reserved, 4 * kMiB) << "it had to grow";
  HoldTheLegacyStream(held);
  Free(*pool, block, CU_STREAM_LEGACY);
  // Without a context.
  std::thread([&] {
    EXPECT_EQ(Must(pool->Trim()), 0u) << "the GPU may still use it";
  }).join();
  held.Release();
  Sync(CU_STREAM_LEGACY);
  std::thread([&] { EXPECT_EQ(Must(pool->Trim()), 4 * kMiB); }).join();
  has_no_primary = false;
  ExpectEmpty(*pool);
}

TEST_F(PoolTest, WhatWasFreedCountsAsReserved) {
  const Stream stream;
  const Stream other;
  for (const std::uint64_t cap : {std::uint64_t{0}, 64 * kMiB}) {
    const std::unique_ptr<Pool> pool = Make({.first_segment_size = 64 * kMiB,
                                             .max_segment_size = 64 * kMiB,
                                             .cap = cap});
    std::vector<CUdeviceptr> blocks;
    for (int i = 0; i < 64; ++i) {
      blocks.push_back(Allocate(*pool, kMiB, stream.get()));
    }
    for (CUdeviceptr block : blocks) Free(*pool, block, stream.get());
    // The other stream may have what the GPU has passed.
    for (CUstream on : {stream.get(), other.get()}) {
      EXPECT_EQ(pool->Reserve(32 * kMiB, on), absl::OkStatus()) << cap;
      EXPECT_EQ(pool->statistics().reserved, 64 * kMiB) << cap;
    }
    ExpectEmpty(*pool);
  }
}

TEST_F(PoolTest, AtTheCapWhatIsIdleInAnotherDomainMakesRoomForAReserve) {
  const std::unique_ptr<Pool> pool = Make({.first_segment_size = 4 * kMiB,
                                           .max_segment_size = 4 * kMiB,
                                           .cap = 12 * kMiB});
  const SharingDomain second = pool->NewDomain();
  const CUdeviceptr block = Allocate(*pool, 4 * kMiB);
  const CUdeviceptr theirs =
      Allocate(*pool, 8 * kMiB, nullptr, {.domain = second});
  Free(*pool, block);
  Free(*pool, theirs);
  EXPECT_EQ(pool->Reserve(8 * kMiB, nullptr), absl::OkStatus());
  // What was idle in this domain has stayed, and counts.
  EXPECT_EQ(pool->statistics().reserved, 8 * kMiB);
  EXPECT_EQ(pool->statistics().free, 8 * kMiB);
  ExpectEmpty(*pool);
}

// As an allocation of as much is.
TEST_F(PoolTest, AReserveIsContentWithSmallerSegments) {
  const std::unique_ptr<Pool> pool = Make({.first_segment_size = 32 * kMiB,
                                           .max_segment_size = 32 * kMiB,
                                           .cap = 40 * kMiB});
  const CUdeviceptr block = Allocate(*pool, 32 * kMiB);
  EXPECT_EQ(pool->Reserve(4 * kMiB, nullptr), absl::OkStatus());
  EXPECT_LE(pool->statistics().reserved, 40 * kMiB);
  EXPECT_GE(pool->statistics().free, 4 * kMiB);
  Free(*pool, block);
  ExpectEmpty(*pool);
}

TEST_F(PoolTest, AReserveThatIsRefusedKeepsNothing) {
  const std::unique_ptr<Pool> pool = Make({.first_segment_size = 4 * kMiB,
                                           .max_segment_size = 4 * kMiB,
                                           .cap = 64 * kMiB});
  EXPECT_EQ(pool->Reserve(4 * kMiB, nullptr), absl::OkStatus());
  const CUdeviceptr block =
      Allocate(*pool, 8 * kMiB, nullptr, {.domain = pool->NewDomain()});
  for (const std::uint64_t bytes :
       {60 * kMiB, 1024 * kMiB, ~std::uint64_t{0}}) {
    EXPECT_EQ(pool->Reserve(bytes, nullptr).code(),
              absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(pool->statistics().reserved, 12 * kMiB) << bytes;
  }
  Free(*pool, block);
  ExpectEmpty(*pool);
}

TEST_F(PoolTest, EachDomainKeepsWhatWasReservedInIt) {
  const std::unique_ptr<Pool> pool =
      Make({.first_segment_size = 4 * kMiB, .max_segment_size = 16 * kMiB});
  const SharingDomain second = pool->NewDomain();
  const SharingDomain third = pool->NewDomain();
  const auto free_in = [&](SharingDomain domain) {
    std::uint64_t free = 0;
    for (const SegmentStatistics& segment : pool->statistics().segments) {
      if (segment.domain == domain) free += segment.size - segment.taken;
    }
    return free;
  };
  for (const SharingDomain domain : {SharingDomain::kFirst, second}) {
    EXPECT_EQ(pool->Reserve(16 * kMiB, nullptr, domain), absl::OkStatus());
  }
  // Smaller segments than those.
  const CUdeviceptr small =
      Allocate(*pool, 4 * kMiB, nullptr, {.domain = third});
  Free(*pool, small);
  const CUdeviceptr large =
      Allocate(*pool, 64 * kMiB, nullptr, {.domain = third});
  EXPECT_EQ(free_in(SharingDomain::kFirst), 16 * kMiB);
  EXPECT_EQ(free_in(second), 16 * kMiB);
  Free(*pool, large);
  ExpectEmpty(*pool);
}

// The device of which a driver says that every context is.
CUdevice device_of_all = 0;

// All of a pool's streams are of one context. Another one of the device may be
// current where the pool grows: here that of another device, which the driver
// says is of the same.
TEST_F(PoolTest, AStreamsContextIsThePoolsWhicheverIsCurrent) {
  const std::vector<Device> all = Must(Device::All(driver()));
  if (all.size() < 2) GTEST_SKIP() << "one device is visible, two are needed";
  device_of_all = device.cuda_device();
  DriverTable table = TestDriver().table();
  table.cuCtxGetDevice = [](CUdevice* its) {
    const CUresult r = TestDriver()->cuCtxGetDevice(its);
    *its = device_of_all;
    return r;
  };
  const Device its = Must(Device::ByOrdinal(ChangedDriver(table), 0));
  for (const bool reserves : {false, true}) {
    const Stream stream;
    HeldStream held(device);
    const std::unique_ptr<Pool> pool = Must(Pool::Create(
        its, {.first_segment_size = 4 * kMiB, .max_segment_size = 4 * kMiB}));
    std::thread([&] {
      const PrimaryContext other = Must(PrimaryContext::Retain(all[1]));
      const CurrentContext current = Must(other.MakeCurrent());
      if (reserves) {
        EXPECT_EQ(pool->Reserve(4 * kMiB, stream.get()), absl::OkStatus());
      } else {
        Free(*pool, Allocate(*pool, 4 * kMiB, stream.get()), stream.get());
      }
    }).join();
    const CUdeviceptr block = Allocate(*pool, 4 * kMiB, nullptr);
    EXPECT_EQ(pool->statistics().reserved, 4 * kMiB) << "it had to grow";
    HoldTheLegacyStream(held);
    Free(*pool, block, nullptr);
    EXPECT_EQ(Must(pool->Trim()), 0u)
        << "the GPU may still use it; reserves: " << reserves;
    held.Release();
    Sync(nullptr);
    ExpectEmpty(*pool);
    EXPECT_EQ(pool->statistics().last_error, absl::OkStatus());
  }
}

// A driver may refuse to tell it while the stream is captured.
TEST_F(PoolTest, AStreamWhoseContextIsNotToldIsTakenForOneOfTheCurrent) {
  DriverTable table = TestDriver().table();
  table.cuStreamGetCtx = [](CUstream, CUcontext*) {
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  };
  const std::unique_ptr<Pool> pool =
      Must(Pool::Create(Must(Device::ByOrdinal(ChangedDriver(table), 0)), {}));
  const Stream stream;
  const absl::StatusOr<CUdeviceptr> block = pool->Allocate(kMiB, stream.get());
  ASSERT_TRUE(block.ok()) << block.status();
  Free(*pool, *block, stream.get());
  Must(pool->Trim());
  EXPECT_EQ(pool->statistics().reserved, 0u);
}

// Code that was compiled for per-thread default streams means another stream by
// null on each thread. A pool that is told so takes it for none.
TEST_F(PoolTest, ANullStreamThatIsOneOfEachThreadIsRefused) {
  using Code = absl::StatusCode;
  const std::unique_ptr<Pool> pool =
      Must(Pool::Create(device, {.null_stream = NullStream::kPerThread}));
  EXPECT_EQ(pool->Allocate(64, nullptr).status().code(),
            Code::kInvalidArgument);
  const CUdeviceptr block = Must(pool->Allocate(64, CU_STREAM_LEGACY));
  EXPECT_EQ(pool->Free(block, nullptr).code(), Code::kInvalidArgument);
  EXPECT_EQ(pool->Reserve(64, nullptr).code(), Code::kInvalidArgument);
  EXPECT_EQ(pool->ReleaseStream(nullptr, absl::InfinitePast()).code(),
            Code::kInvalidArgument);
  EXPECT_TRUE(pool->Free(block, CU_STREAM_LEGACY).ok());
}

TEST_F(PoolTest, AtTheCapItSaysWhereTheMemoryIs) {
  const std::unique_ptr<Pool> pool = Make({.first_segment_size = 4 * kMiB,
                                           .max_segment_size = 64 * kMiB,
                                           .cap = 8 * kMiB});
  std::vector<CUdeviceptr> blocks;
  absl::StatusOr<CUdeviceptr> block;
  while ((block = pool->Allocate(1 * kMiB, nullptr)).ok()) {
    blocks.push_back(*block);
  }
  EXPECT_EQ(blocks.size(), 8u);
  EXPECT_EQ(block.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(
      block.status().message(),
      AllOf(HasSubstr("1048576 bytes"), HasSubstr("cap of 8388608 bytes")));
  Free(*pool, blocks.back());
  blocks.back() = Allocate(*pool, 1 * kMiB);
  for (CUdeviceptr one : blocks) Free(*pool, one);
  // What is idle but too small makes room for what is not.
  Free(*pool, Allocate(*pool, 8 * kMiB));
  ExpectEmpty(*pool);
}

TEST_F(PoolTest, OutOfMemoryInTheMiddleOfGrowthLeavesItWhole) {
  DriverFaults faults;
  {
    const platform::Driver faulty = FaultyDriver(driver(), &faults);
    const Device its = Must(Device::ByOrdinal(faulty, 0));
    const std::unique_ptr<Pool> pool = Must(Pool::Create(
        its, {.first_segment_size = 8 * kMiB, .max_segment_size = 8 * kMiB}));
    const CUdeviceptr first = Allocate(*pool, kMiB);
    for (const char* entry :
         {"cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"}) {
      faults.Arm(
          {.point = {.nth = 0, .times = FaultPoint::kForEver}, .entry = entry});
      // Addresses are had for 64 times the first segment.
      const bool of_addresses = entry == std::string("cuMemAddressReserve");
      const absl::StatusOr<CUdeviceptr> none =
          pool->Allocate((of_addresses ? 1024 : 32) * kMiB, nullptr);
      EXPECT_GE(faults.Disarm().fired, 1u) << entry;
      EXPECT_EQ(none.status().code(), absl::StatusCode::kResourceExhausted)
          << entry << ": " << none.status();
      ExpectWhole(*pool);
      EXPECT_EQ(pool->statistics().reserved, 8 * kMiB);
    }
    // Once: a smaller segment is made instead.
    faults.Arm({.point = {.nth = 0}, .entry = "cuMemCreate"});
    std::vector<CUdeviceptr> blocks;
    for (int i = 0; i < 9; ++i) blocks.push_back(Allocate(*pool, kMiB));
    EXPECT_EQ(faults.Disarm().fired, 1u);
    EXPECT_EQ(pool->statistics().segments.back().size, 4 * kMiB);
    for (CUdeviceptr block : blocks) Free(*pool, block);
    Free(*pool, first);
    ExpectEmpty(*pool);
  }
}

TEST_F(PoolTest, ReservesAheadSoThatAllocatingGrowsNothing) {
  const std::unique_ptr<Pool> pool = Make();
  ASSERT_TRUE(pool->Reserve(100 * kMiB, nullptr).ok());
  const std::uint64_t reserved = pool->statistics().reserved;
  EXPECT_GE(reserved, 100 * kMiB);
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 100; ++i) blocks.push_back(Allocate(*pool, kMiB));
  EXPECT_EQ(pool->statistics().reserved, reserved);
  EXPECT_TRUE(pool->Reserve(reserved - 100 * kMiB, nullptr).ok());
  EXPECT_EQ(pool->statistics().reserved, reserved);
  for (CUdeviceptr block : blocks) Free(*pool, block);
  ExpectEmpty(*pool);
}

TEST_F(PoolTest, DomainsShareNoSegmentAndMemoryIsZeroedInBetween) {
  const std::unique_ptr<Pool> pool = Make({.first_segment_size = 4 * kMiB,
                                           .max_segment_size = 4 * kMiB,
                                           .cap = 4 * kMiB});
  const SharingDomain second = pool->NewDomain();
  const CUdeviceptr first = Allocate(*pool, 1 * kMiB);
  Fill(first, 0x5a, 1 * kMiB);
  EXPECT_EQ(
      pool->Allocate(1 * kMiB, nullptr, {.domain = second}).status().code(),
      absl::StatusCode::kResourceExhausted)
      << "the segment is in use by the first domain";
  Free(*pool, first);
  const CUdeviceptr moved =
      Allocate(*pool, 4 * kMiB, nullptr, {.domain = second});
  EXPECT_TRUE(Holds(moved, 0, 4 * kMiB));
  EXPECT_EQ(pool->statistics().segments.size(), 1u);
  EXPECT_EQ(pool->statistics().segments[0].domain, second);
  Free(*pool, moved);
  ExpectEmpty(*pool);
}

TEST_F(PoolTest, ReleaseStreamWaitsAndLetsTheMemoryServeAnyStream) {
  const std::unique_ptr<Pool> pool = Make({.first_segment_size = 4 * kMiB,
                                           .max_segment_size = 4 * kMiB,
                                           .cap = 4 * kMiB});
  CUdeviceptr kept = 0;
  {
    HeldStream stream(device);
    kept = Allocate(*pool, 1 * kMiB, stream.get());
    const CUdeviceptr block = Allocate(*pool, 1 * kMiB, stream.get());
    Free(*pool, block, stream.get());
    EXPECT_EQ(
        pool->ReleaseStream(stream.get(), absl::Now() + absl::Milliseconds(20))
            .code(),
        absl::StatusCode::kDeadlineExceeded);
    stream.Release();
    EXPECT_TRUE(pool->ReleaseStream(stream.get(), Soon()).ok());
  }
  Stream other;
  const CUdeviceptr rest = Allocate(*pool, 3 * kMiB, other.get());
  Free(*pool, rest, other.get());
  Free(*pool, kept, other.get());
  EXPECT_TRUE(pool->ReleaseStream(other.get(), Soon()).ok());
  ExpectEmpty(*pool);
}

TEST_F(PoolTest, AFreedBlocksTicketIsAnother) {
  const std::unique_ptr<Pool> pool = Make();
  const CUdeviceptr block = Allocate(*pool, 1000);
  const PoolTicket ticket = Must(pool->Export(block));
  EXPECT_EQ(ticket.size, 1000u);
  EXPECT_EQ(Must(pool->Export(block)), ticket) << "the same while it lives";
  EXPECT_EQ(pool->statistics().tickets, 1u);
  Free(*pool, block);
  EXPECT_EQ(pool->statistics().tickets, 0u);
  EXPECT_EQ(Allocate(*pool, 1000), block);
  EXPECT_NE(Must(pool->Export(block)).generation, ticket.generation);
  Free(*pool, block);
  ExpectEmpty(*pool);
}

TEST_F(PoolTest, ExportsManyAndNamesTheOneThatIsNone) {
  const std::unique_ptr<Pool> pool = Make();
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 1000; ++i) blocks.push_back(Allocate(*pool, 512));
  const std::vector<PoolTicket> tickets = Must(pool->ExportAll(blocks));
  ASSERT_EQ(tickets.size(), blocks.size());
  for (std::size_t i = 1; i < tickets.size(); ++i) {
    EXPECT_EQ(tickets[i].offset - tickets[0].offset, blocks[i] - blocks[0]);
  }
  blocks.push_back(blocks[7] + 256);
  EXPECT_EQ(pool->ExportAll(blocks).status().code(),
            absl::StatusCode::kInvalidArgument);
  blocks.pop_back();
  for (CUdeviceptr block : blocks) Free(*pool, block);
  ExpectEmpty(*pool);
}

TEST_F(PoolTest, ABlockMayBeExportedTwiceAtOnceAndBeFreedAfterwards) {
  const std::unique_ptr<Pool> pool = Make();
  const CUdeviceptr first = Allocate(*pool, 512);
  const CUdeviceptr second = Allocate(*pool, 512);
  const std::vector<PoolTicket> tickets =
      Must(pool->ExportAll({first, second, first}));
  EXPECT_EQ(tickets[0], tickets[2]);
  EXPECT_NE(tickets[0], tickets[1]);
  Free(*pool, second);
  // Nothing is left claimed by what failed: Free() would wait for ever.
  EXPECT_FALSE(pool->ExportAll({first, first, second}).ok());
  EXPECT_EQ(Must(pool->Export(first)), tickets[0]);
  Free(*pool, first);
  EXPECT_FALSE(pool->ExportAll({first}).ok());
  ExpectEmpty(*pool);
}

TEST_F(PoolTest, APrivatePoolExportsNothing) {
  const std::unique_ptr<Pool> pool = Make({.sharing = SharePolicy::Private()});
  const CUdeviceptr block = Allocate(*pool, 1000);
  EXPECT_EQ(pool->Export(block).status().code(),
            absl::StatusCode::kFailedPrecondition);
  Free(*pool, block);
}

TEST_F(PoolTest, AWarmPoolMakesNoDriverCall) {
  DriverFaults faults;
  const platform::Driver counted = FaultyDriver(driver(), &faults);
  const Device its = Must(Device::ByOrdinal(counted, 0));
  const std::unique_ptr<Pool> pool = Must(Pool::Create(its, {}));
  const auto run = [&pool] {
    std::vector<CUdeviceptr> blocks;
    for (std::uint64_t i = 0; i < 1000; ++i) {
      blocks.push_back(Allocate(*pool, 1 + (i * 7919) % 100000));
    }
    Must(pool->ExportAll(blocks));
    for (CUdeviceptr block : blocks) Free(*pool, block);
  };
  run();
  faults.ResetCounts();
  run();
  EXPECT_EQ(faults.calls(), 0u)
      << ::testing::PrintToString(faults.CallsByEntry());
}

// A point that was recorded only after the wait might not be passed yet.
TEST_F(PoolTest, WhatWasFreedOnAReleasedStreamWaitsNoMore) {
  Stream home;
  Stream other;
  DriverFaults faults;
  const platform::Driver slow = FaultyDriver(driver(), &faults);
  const Device its = Must(Device::ByOrdinal(slow, 0));
  const std::unique_ptr<Pool> pool = Must(Pool::Create(its, {}));
  Free(*pool, Allocate(*pool, 4096, home.get()), other.get());
  faults.Arm({.point = {.nth = 0},
              .entry = "cuEventQuery",
              .result = CUDA_ERROR_NOT_READY});
  const absl::Status released = pool->ReleaseStream(other.get(), Soon());
  EXPECT_EQ(faults.Disarm().fired, 1u);
  EXPECT_TRUE(released.ok()) << released;
  EXPECT_EQ(pool->statistics().cached, 0u);
  EXPECT_EQ(pool->statistics().pending, 0u);
  Must(pool->ReleaseStream(home.get(), Soon()));
  ExpectEmpty(*pool);
}

TEST_F(PoolTest, WhatAnotherThreadKeepsServesBeforeThePoolGrows) {
  const std::unique_ptr<Pool> pool = Make();
  const Stream stream;
  std::promise<void> freed;
  std::promise<void> served;
  std::thread other([&] {
    Free(*pool, Allocate(*pool, 48 * kMiB, stream.get()), stream.get());
    freed.set_value();
    served.get_future()
        .wait();  // It keeps what it freed for as long as it lives.
  });
  freed.get_future().wait();
  const std::uint64_t reserved = pool->statistics().reserved;
  const CUdeviceptr block = Allocate(*pool, 40 * kMiB, stream.get());
  EXPECT_EQ(pool->statistics().reserved, reserved);
  served.set_value();
  other.join();
  Free(*pool, block, stream.get());
  EXPECT_TRUE(pool->ReleaseStream(stream.get(), Soon()).ok());
  ExpectEmpty(*pool);
}

TEST_F(PoolTest, ThreadsUseItTogether) {
  const std::unique_ptr<Pool> pool = Make();
  constexpr int kThreads = 8;
  CUcontext context = nullptr;
  ASSERT_EQ(driver()->cuCtxGetCurrent(&context), CUDA_SUCCESS);
  std::vector<Stream> streams(3);
  std::mutex mutex;
  // Blocks that some thread has, which any may free: their first word says
  // whose they are.
  std::vector<std::pair<CUdeviceptr, std::uint32_t>> shared;
  std::atomic<int> wrong = 0;
  const auto work = [&](std::uint32_t seed) {
    EXPECT_EQ(driver()->cuCtxSetCurrent(context), CUDA_SUCCESS);
    std::mt19937 random(seed);
    for (std::uint32_t i = 0; i < 4000; ++i) {
      CUstream stream = streams[random() % streams.size()].get();
      const std::uint64_t size = 4 + random() % (1u << (8 + random() % 12));
      absl::StatusOr<CUdeviceptr> block = pool->Allocate(size, stream);
      if (!block.ok()) {
        ++wrong;
        continue;
      }
      if (random() % 4 == 0) {
        if (!pool->Export(*block).ok()) ++wrong;
      }
      const std::uint32_t word = seed << 24 | i;
      std::optional<std::pair<CUdeviceptr, std::uint32_t>> other;
      {
        std::lock_guard<std::mutex> lock(mutex);
        shared.emplace_back(*block, word);
        if (shared.size() > 64) {
          std::swap(shared.back(), shared[random() % shared.size()]);
          other = shared.back();
          shared.pop_back();
        }
      }
      if (other.has_value() && !pool->Free(other->first, stream).ok()) ++wrong;
      if (i % 1000 == 500) Must(pool->Trim(8 * kMiB));
    }
  };
  std::vector<std::thread> threads;
  for (std::uint32_t seed = 1; seed <= kThreads; ++seed) {
    threads.emplace_back(work, seed);
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  std::vector<CUdeviceptr> left;
  for (const auto& [block, word] : shared) left.push_back(block);
  std::sort(left.begin(), left.end());
  EXPECT_EQ(std::adjacent_find(left.begin(), left.end()), left.end());
  ExpectWhole(*pool);
  for (CUdeviceptr block : left) Free(*pool, block, streams[0].get());
  for (const Stream& stream : streams) {
    EXPECT_TRUE(pool->ReleaseStream(stream.get(), Soon()).ok());
  }
  ExpectEmpty(*pool);
}

}  // namespace
}  // namespace vmm::testing
