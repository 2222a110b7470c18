// Tensor sets that are copied together from memory of the device.
#include <gmock/gmock.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "tests/gpu/held_stream.h"
#include "tests/gpu/stream.h"
#include "tests/gpu/vmm_driver_test.h"
#include "tests/support/driver_faults.h"
#include "vmm/weights/tensor_set.h"

namespace vmm::testing {
namespace {

using ::testing::HasSubstr;
using Source = TensorSetWriter::Source;

// Lengths of which 3,000 take several launches: no bytes, odd ones, some of a
// tile, and a few of many.
std::int64_t LengthOf(int i) {
  if (i % 500 == 7) return 100'003 + i;
  if (i % 100 == 5) return 16384 * (i % 3) + i % 2;
  return i % 53;
}

class WeightsCopyTest : public DriverTest {
 protected:
  static constexpr int kTensors = 3000;

  // What a real driver keeps for kernels that it runs for the first time is no
  // leak of a test.
  static void SetUpTestSuite() {
    KeepContexts();
    const Device device = Must(Device::ByOrdinal(TestDriver(), 0));
    const PrimaryContext context = Must(PrimaryContext::Retain(device));
    const CurrentContext current = Must(context.MakeCurrent());
    TensorLayout layout;
    Must(layout.Add("one", DType::kUInt8, {100'000}));
    const Allocation memory =
        Must(Allocation::Create(device, {.size = layout.size()}));
    TensorSetWriter writer = Must(TensorSetWriter::Begin(
        TestDriver(), memory.address(), memory.requested_size(), layout));
    const Allocation from =
        Must(Allocation::Create(device, {.size = layout.size()}));
    const Source one = {0, from.address()};
    Must(writer.CopyAll({&one, 1}, nullptr));
    Must(writer.TakeChecksums());
    Must(writer.Seal({}));
  }

  WeightsCopyTest() {
    for (int i = 0; i < kTensors; ++i) {
      Must(layout_.Add(absl::StrCat(i), DType::kUInt8, {LengthOf(i)}));
    }
    Must(layout_.AddAlias("tied", 7, DType::kUInt8, {10}));
    memory_ = Must(Allocation::Create(device, {.size = layout_.size()}));
    from_ = Must(Allocation::Create(device, {.size = 4 << 20}));
    bytes_.resize(std::size_t{4} << 20);
    for (std::size_t i = 0; i < bytes_.size(); ++i) {
      bytes_[i] = static_cast<std::uint8_t>(i * 2654435761u >> 13);
    }
    EXPECT_EQ(
        driver()->cuMemcpyHtoD(from_->address(), bytes_.data(), bytes_.size()),
        CUDA_SUCCESS);
    EXPECT_EQ(driver()->cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  }

  TensorSetWriter Begin(const platform::Driver& driver) {
    return Must(TensorSetWriter::Begin(driver, memory_->address(),
                                       memory_->requested_size(), layout_));
  }
  // Where tensor i is copied from: aligned and not.
  static std::uint64_t OffsetOf(std::size_t i) {
    return i * 1009 % 3'000'000 / (i % 2 == 0 ? 16 : 1) * (i % 2 == 0 ? 16 : 1);
  }
  std::vector<Source> AllFrom(CUdeviceptr at) const {
    std::vector<Source> sources;
    for (std::size_t i = 0; i < kTensors; ++i) {
      sources.push_back({i, at + OffsetOf(i)});
    }
    return sources;
  }
  void ExpectCopied(const TensorSetWriter& writer) {
    std::vector<std::uint8_t> all(
        static_cast<std::size_t>(writer.manifest().data_bytes));
    ASSERT_EQ(
        driver()->cuMemcpyDtoH(all.data(), memory_->address(), all.size()),
        CUDA_SUCCESS);
    for (std::size_t i = 0; i < kTensors; ++i) {
      const TensorInfo& info = writer.manifest().tensors[i];
      if (info.extent() == 0) continue;
      ASSERT_EQ(
          std::memcmp(all.data() + info.offset, bytes_.data() + OffsetOf(i),
                      static_cast<std::size_t>(info.extent())),
          0)
          << "tensor " << i << " of " << info.extent();
    }
  }
  // Nothing of it is there.
  void Wipe() {
    EXPECT_EQ(driver()->cuMemsetD8(memory_->address(), 0xee, memory_->size()),
              CUDA_SUCCESS);
    EXPECT_EQ(driver()->cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  }

  TensorLayout layout_{{.fingerprint = "copied"}};
  std::optional<Allocation> memory_;
  std::optional<Allocation> from_;
  std::vector<std::uint8_t> bytes_;
};

// Its caller frees the memory next, to which the trailer would still be copied.
TEST_F(WeightsCopyTest, ABeginThatCannotWaitWaitsOnceMore) {
  DriverFaults faults;
  const platform::Driver faulty = FaultyDriver(driver(), &faults);
  int written = 0;
  for (std::uint64_t nth = 0, fired = 1; fired > 0; ++nth) {
    faults.ResetCounts();
    faults.Arm({.point = {.nth = nth},
                .entry = "cuCtxPushCurrent",
                .result = CUDA_ERROR_NOT_PERMITTED});
    TensorSetWriter::Begin(faulty, memory_->address(),
                           memory_->requested_size(), layout_)
        .IgnoreError();
    fired = faults.Disarm().fired;
    const std::map<std::string, std::uint64_t> calls = faults.CallsByEntry();
    if (!calls.contains("cuMemcpyHtoD")) continue;
    ++written;
    EXPECT_TRUE(calls.contains("cuStreamSynchronize")) << nth;
  }
  EXPECT_GE(written, 2) << "no refusal came after the copy";
}

TEST_F(WeightsCopyTest, ManyOfAllSizesComeInTheStreamsTurn) {
  TensorSetWriter writer = Begin(driver());
  Must(writer.CopyAll({}, nullptr));
  Wipe();
  HeldStream held(device);
  Must(writer.CopyAll(AllFrom(from_->address()), held.get()));
  std::uint8_t first = 0;
  const CUdeviceptr at =
      memory_->address() + writer.manifest().tensors[7].offset;
  ASSERT_EQ(driver()->cuMemcpyDtoH(&first, at, 1), CUDA_SUCCESS);
  EXPECT_EQ(first, 0xee) << "it did not wait for its turn";
  held.Release();
  EXPECT_EQ(driver()->cuStreamSynchronize(held.get()), CUDA_SUCCESS);
  ExpectCopied(writer);
}

TEST_F(WeightsCopyTest, AreSealedWithTheirChecksums) {
  TensorSetWriter writer = Begin(driver());
  Must(writer.Write(3, 0, std::vector<std::uint8_t>(LengthOf(3))));
  Must(writer.CopyAll(AllFrom(from_->address()), nullptr));
  Must(writer.TakeChecksums());
  Must(writer.Seal({}));
  const TensorSet set = Must(
      TensorSet::Open(driver(), memory_->address(), memory_->requested_size()));
  EXPECT_EQ(Must(set.Verify()), std::size_t{kTensors});
  ExpectCopied(writer);
  // Of a sealed set, whose readers wait meanwhile.
  Wipe();
  const Stream stream;
  Must(writer.CopyAll(AllFrom(from_->address()), stream.get()));
  stream.Sync();
  ExpectCopied(writer);
}

TEST_F(WeightsCopyTest, OfASealedSetAreWaitedForToo) {
  DriverFaults faults;
  const platform::Driver counting = FaultyDriver(driver(), &faults);
  const auto waits = [&] {
    return faults.CallsByEntry()["cuStreamSynchronize"];
  };
  std::optional<TensorSetWriter> writer = Begin(counting);
  Must(writer->Seal({}));
  // Nothing is under way.
  faults.ResetCounts();
  writer.reset();
  EXPECT_EQ(waits(), 0u);
  for (const CUstream its_default : {CUstream{nullptr}, CU_STREAM_LEGACY}) {
    writer = Begin(counting);
    Must(writer->Seal({}));
    Must(writer->CopyAll(AllFrom(from_->address()), its_default));
    faults.ResetCounts();
    writer.reset();
    EXPECT_GE(waits(), 1u) << its_default;
  }
  // Also by whoever has the writer then.
  TensorSetWriter first = Begin(counting);
  Must(first.Seal({}));
  Must(first.CopyAll(AllFrom(from_->address()), nullptr));
  writer = Begin(counting);
  *writer = std::move(first);
  faults.ResetCounts();
  writer.reset();
  EXPECT_GE(waits(), 1u);
}

// What a kernel may not read would end the context, so the driver copies it.
TEST_F(WeightsCopyTest, OfMemoryOfTheHostTheSame) {
  void* pinned = nullptr;
  ASSERT_EQ(driver()->cuMemHostAlloc(&pinned, bytes_.size(), 0), CUDA_SUCCESS);
  std::memcpy(pinned, bytes_.data(), bytes_.size());
  DriverFaults faults;
  const platform::Driver counting = FaultyDriver(driver(), &faults);
  TensorSetWriter writer = Begin(counting);
  Wipe();
  Must(writer.CopyAll(AllFrom(reinterpret_cast<CUdeviceptr>(pinned)), nullptr));
  EXPECT_EQ(faults.CallsByEntry()["cuLaunchKernel"], 0u);
  EXPECT_EQ(driver()->cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  ExpectCopied(writer);
  EXPECT_EQ(driver()->cuMemFreeHost(pinned), CUDA_SUCCESS);
}

TEST_F(WeightsCopyTest, IntoMemoryOfTheHostTheSameOnceTheStreamIsThere) {
  // Only the CPU may use it.
  const Allocation host = Must(Allocation::Create(
      device, {.size = layout_.size(),
               .host_numa_node = 0,
               .also = {{Location::HostNuma(0), Access::kReadWrite}}}));
  DriverFaults faults;
  const platform::Driver counting = FaultyDriver(driver(), &faults);
  TensorSetWriter writer = Must(TensorSetWriter::Begin(
      counting, host.address(), host.requested_size(), layout_));
  EXPECT_EQ(driver()->cuMemsetD8(from_->address(), 0, bytes_.size()),
            CUDA_SUCCESS);
  EXPECT_EQ(driver()->cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  // What the stream has yet to write is what is copied.
  HeldStream held(device);
  EXPECT_EQ(driver()->cuMemsetD8Async(from_->address(), 0x5a, bytes_.size(),
                                      held.get()),
            CUDA_SUCCESS);
  std::thread later([&] {
    const PrimaryContext context = Must(PrimaryContext::Retain(device));
    const CurrentContext current = Must(context.MakeCurrent());
    const absl::Time end = absl::Now() + absl::Seconds(10);
    const auto waits = [&] {
      return faults.CallsByEntry()["cuStreamSynchronize"] > 0;
    };
    while (!waits() && absl::Now() < end) absl::SleepFor(absl::Milliseconds(1));
    EXPECT_TRUE(waits());
    held.Release();
  });
  Must(writer.CopyAll(AllFrom(from_->address()), held.get()));
  later.join();
  Must(writer.CopyFrom(7, from_->address() + OffsetOf(7)));
  const auto* const bytes =
      reinterpret_cast<const std::uint8_t*>(host.address());
  for (std::size_t i = 0; i < kTensors; ++i) {
    const TensorInfo& info = writer.manifest().tensors[i];
    ASSERT_THAT(absl::MakeSpan(bytes + info.offset,
                               static_cast<std::size_t>(info.extent())),
                ::testing::Each(0x5a))
        << "tensor " << i;
  }
}

TEST_F(WeightsCopyTest, IntoMemoryOfTheHostWithoutAContextIsRefused) {
  const Allocation host = Must(Allocation::Create(
      device, {.size = layout_.size(),
               .host_numa_node = 0,
               .also = {{Location::HostNuma(0), Access::kReadWrite}}}));
  TensorSetWriter writer = Must(TensorSetWriter::Begin(
      driver(), host.address(), host.requested_size(), layout_));
  std::thread([&] {
    const absl::Status refused =
        writer.CopyAll(AllFrom(from_->address()), nullptr);
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_THAT(refused.message(), HasSubstr("no context is current"));
  }).join();
}

TEST_F(WeightsCopyTest, OfAnotherDeviceTheSame) {
  if (Peer() == nullptr) GTEST_SKIP() << "needs two devices";
  const Allocation there = Must(Allocation::Create(
      *Peer(), {.size = bytes_.size(),
                .also = {{Location::On(device), Access::kReadWrite}}}));
  const PrimaryContext context = Must(PrimaryContext::Retain(*Peer()));
  {
    const CurrentContext current = Must(context.MakeCurrent());
    EXPECT_EQ(
        driver()->cuMemcpyHtoD(there.address(), bytes_.data(), bytes_.size()),
        CUDA_SUCCESS);
    EXPECT_EQ(driver()->cuCtxSynchronize(), CUDA_SUCCESS);
  }
  DriverFaults faults;
  const platform::Driver counting = FaultyDriver(driver(), &faults);
  TensorSetWriter writer = Begin(counting);
  Wipe();
  Must(writer.CopyAll(AllFrom(there.address()), nullptr));
  EXPECT_EQ(faults.CallsByEntry()["cuLaunchKernel"], 0u);
  EXPECT_EQ(driver()->cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  ExpectCopied(writer);
}

// Range attributes of the driver answer what was reserved, and not what is mapped.
TEST_F(WeightsCopyTest, OfNeighboursOfTwoPlacesOnlyTheDevicesOwnByAKernel) {
  const std::uint64_t size = bytes_.size();
  std::vector<AllocationOptions> others(1);
  std::vector<Device> owners = {device};
  others[0].host_numa_node = 0;
  if (const Device* const peer = Peer(); peer != nullptr) {
    owners.push_back(*peer);
    others.emplace_back().also = {{Location::On(device), Access::kReadWrite}};
  }
  for (std::size_t which = 0; which < others.size(); ++which) {
    const auto range = std::make_shared<const AddressRange>(
        Must(AddressRange::Reserve(driver(), 2 * size)));
    const Allocation first = Must(
        Allocation::Create(device, {.size = size, .at = Placement{range, 0}}));
    AllocationOptions options = others[which];
    options.size = size;
    options.at = Placement{range, size};
    const Allocation second = Must(Allocation::Create(owners[which], options));
    for (const Allocation* each : {&first, &second}) {
      const PrimaryContext context =
          Must(PrimaryContext::Retain(each->device()));
      const CurrentContext current = Must(context.MakeCurrent());
      EXPECT_EQ(driver()->cuMemcpyHtoD(each->address(), bytes_.data(), size),
                CUDA_SUCCESS);
      EXPECT_EQ(driver()->cuCtxSynchronize(), CUDA_SUCCESS);
    }
    DriverFaults faults;
    const platform::Driver counting = FaultyDriver(driver(), &faults);
    TensorSetWriter writer = Begin(counting);
    Wipe();
    // The one of any bytes that comes first is of the device's own.
    std::vector<Source> sources = AllFrom(first.address());
    std::uint64_t from_second = 0;
    for (std::size_t i = 0; i < kTensors; i += 2) {
      sources[i].from += size;
      if (LengthOf(static_cast<int>(i)) > 0) ++from_second;
    }
    faults.ResetCounts();
    Must(writer.CopyAll(sources, nullptr));
    EXPECT_EQ(faults.CallsByEntry()["cuMemcpyDtoDAsync"], from_second);
    EXPECT_GE(faults.CallsByEntry()["cuLaunchKernel"], 1u);
    EXPECT_EQ(driver()->cuStreamSynchronize(nullptr), CUDA_SUCCESS);
    ExpectCopied(writer);
  }
}

TEST_F(WeightsCopyTest, OfChunksSideBySideAKernelCopiesAll) {
  const Allocation chunks = Must(Allocation::Create(
      device, {.size = bytes_.size(), .max_chunk_size = kGranule}));
  EXPECT_EQ(
      driver()->cuMemcpyHtoD(chunks.address(), bytes_.data(), bytes_.size()),
      CUDA_SUCCESS);
  EXPECT_EQ(driver()->cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  DriverFaults faults;
  const platform::Driver counting = FaultyDriver(driver(), &faults);
  TensorSetWriter writer = Begin(counting);
  Wipe();
  // One of them lies in two chunks.
  ASSERT_LT(OffsetOf(2007), kGranule);
  ASSERT_GT(OffsetOf(2007) + static_cast<std::uint64_t>(LengthOf(2007)),
            kGranule);
  Must(writer.CopyAll(AllFrom(chunks.address()), nullptr));
  EXPECT_EQ(faults.CallsByEntry()["cuMemcpyDtoDAsync"], 0u);
  EXPECT_EQ(driver()->cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  ExpectCopied(writer);
}

TEST_F(WeightsCopyTest, WhatIsNoTensorOfItsOwnIsRefusedBeforeAnything) {
  TensorSetWriter writer = Begin(driver());
  Wipe();
  std::vector<Source> sources = AllFrom(from_->address());
  sources.push_back({kTensors, from_->address()});
  EXPECT_TRUE(absl::IsInvalidArgument(writer.CopyAll(sources, nullptr)));
  sources.back().tensor = kTensors + 1;
  EXPECT_TRUE(absl::IsOutOfRange(writer.CopyAll(sources, nullptr)));
  std::vector<std::uint8_t> all(
      static_cast<std::size_t>(writer.manifest().data_bytes));
  ASSERT_EQ(driver()->cuMemcpyDtoH(all.data(), memory_->address(), all.size()),
            CUDA_SUCCESS);
  EXPECT_THAT(all, ::testing::Each(0xee));
}

// So that none is made within the step that readers wait for.
TEST_F(WeightsCopyTest, AWriterHasAHandleOfItsMemoryOpen) {
  DriverFaults faults;
  const platform::Driver counting = FaultyDriver(driver(), &faults);
  const char* const kExport = "cuMemExportToShareableHandle";
  { const TensorSetWriter writer = Begin(counting); }
  EXPECT_EQ(faults.CallsByEntry()[kExport],
            memory_->shareable().layout().count());
  // What cannot be shared is told to whoever shares it.
  for (const char* entry : {kExport, "cuMemRetainAllocationHandle"}) {
    faults.Arm({.point = {.times = FaultPoint::kForEver},
                .entry = entry,
                .result = CUDA_ERROR_NOT_SUPPORTED});
    EXPECT_EQ(TensorSetWriter::Begin(counting, memory_->address(),
                                     memory_->requested_size(), layout_)
                  .ok(),
              entry == kExport);
    EXPECT_GE(faults.Disarm().fired, 1u);
  }
  memory_ = Must(Allocation::Create(
      device, {.size = layout_.size(), .sharing = SharePolicy::Private()}));
  faults.ResetCounts();
  const TensorSetWriter writer = Begin(counting);
  EXPECT_EQ(faults.CallsByEntry()[kExport], 0u);
}

// They are what the process is short of.
TEST_F(WeightsCopyTest, AWriterKeepsNoHandlesWhereThereAreNotEnough) {
  DriverFaults faults;
  const platform::Driver failing = FaultyDriver(driver(), &faults);
  memory_ = Must(Allocation::Create(
      device, {.size = 4 * kGranule, .max_chunk_size = kGranule}));
  ASSERT_EQ(memory_->shareable().layout().count(), 4u);
  { const TensorSetWriter writer = Begin(failing); }
  const std::size_t before = OpenHandles().size();
  {
    const TensorSetWriter writer = Begin(failing);
    EXPECT_EQ(OpenHandles().size(), before + 4);
  }
  faults.Arm({.point = {.nth = 1, .times = FaultPoint::kForEver},
              .entry = "cuMemExportToShareableHandle",
              .result = CUDA_ERROR_OPERATING_SYSTEM});
  const TensorSetWriter writer = Begin(failing);
  EXPECT_GE(faults.Disarm().fired, 1u);
  EXPECT_EQ(OpenHandles().size(), before);
}

TEST_F(WeightsCopyTest, WhatTheDriverRefusesIsTold) {
  DriverFaults faults;
  const platform::Driver failing = FaultyDriver(driver(), &faults);
  TensorSetWriter writer = Begin(failing);
  // Too old for the kernel: the driver copies one by one.
  faults.Arm({.entry = "cuLibraryGetKernel",
              .result = CUDA_ERROR_UNSUPPORTED_PTX_VERSION});
  Wipe();
  Must(writer.CopyAll(AllFrom(from_->address()), nullptr));
  EXPECT_EQ(faults.Disarm().fired, 1u);
  EXPECT_GT(faults.CallsByEntry()["cuMemcpyDtoDAsync"], kTensors / 2);
  EXPECT_EQ(driver()->cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  ExpectCopied(writer);
  faults.ResetCounts();
  for (const char* entry :
       {"cuLibraryGetKernel", "cuPointerGetAttributes", "cuLaunchKernel"}) {
    faults.Arm({.entry = entry, .result = CUDA_ERROR_INVALID_HANDLE});
    const absl::Status copied =
        writer.CopyAll(AllFrom(from_->address()), nullptr);
    EXPECT_TRUE(absl::IsInvalidArgument(copied)) << entry;
    EXPECT_THAT(std::string(copied.message()), HasSubstr(entry));
    EXPECT_EQ(faults.Disarm().fired, 1u);
  }
  Wipe();
  Must(writer.CopyAll(AllFrom(from_->address()), nullptr));
  EXPECT_EQ(faults.CallsByEntry()["cuMemcpyDtoDAsync"], 0u);
  // It asks for a range once.
  EXPECT_LT(faults.CallsByEntry()["cuPointerGetAttributes"], 10u);
  EXPECT_EQ(driver()->cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  ExpectCopied(writer);
  // And not at all where the caller knows.
  faults.ResetCounts();
  Wipe();
  Must(writer.CopyAll(AllFrom(from_->address()), nullptr,
                      TensorSetWriter::From::kDevice));
  EXPECT_EQ(faults.CallsByEntry()["cuPointerGetAttributes"], 0u);
  EXPECT_EQ(driver()->cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  ExpectCopied(writer);
}

}  // namespace
}  // namespace vmm::testing
