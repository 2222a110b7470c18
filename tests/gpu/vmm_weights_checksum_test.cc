// Checksums that a device takes of what it has.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/gpu/loaded_kernel.h"
#include "tests/gpu/vmm_driver_test.h"
#include "tests/support/driver_faults.h"
#include "tests/support/private_directory.h"
#include "vmm/memory/internal/host_copy.h"
#include "vmm/memory/internal/wire.h"
#include "vmm/weights/internal/checksum_kernel.h"
#include "vmm/weights/tensor_set.h"

namespace vmm::testing {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using weights::ChecksumKernel;

constexpr std::uint64_t kBytes = std::uint64_t{20} << 20;

class WeightsChecksumTest : LoadedKernel, public DriverTest {
 protected:
  WeightsChecksumTest() : bytes_(kBytes) {
    std::uint32_t state = 1;
    for (std::uint8_t& byte : bytes_) {
      state = state * 1664525u + 1013904223u;
      byte = static_cast<std::uint8_t>(state >> 24);
    }
    memory_ = Must(Allocation::Create(device, {.size = kBytes}));
    EXPECT_EQ(driver()->cuMemcpyHtoD(memory_->address(), bytes_.data(), kBytes),
              CUDA_SUCCESS);
    EXPECT_EQ(driver()->cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  }

  // Lengths around each that the kernel knows, at places of any alignment.
  std::vector<AddressSpan> Ranges() const {
    std::vector<AddressSpan> ranges;
    for (const std::uint64_t edge :
         {0, 16, 512, 1024, 16384, 32768, 100'000, 3'000'000}) {
      for (const std::uint64_t more : {0, 1, 3, 15}) {
        for (const std::uint64_t before : {0, 1, 8, 13}) {
          ranges.push_back({memory_->address() + before, edge + more});
          if (edge < 16) continue;
          ranges.push_back({memory_->address() + before + 4096, edge - more});
        }
      }
    }
    // To the last byte that is mapped.
    ranges.push_back({memory_->address() + kBytes - 16385, 16385});
    ranges.push_back({memory_->address(), kBytes});
    // As many as take several launches.
    for (std::uint64_t i = 0; i < 1300; ++i) {
      ranges.push_back({memory_->address() + i * 257, i % 700});
    }
    return ranges;
  }
  std::vector<std::uint32_t> Expected(
      const std::vector<AddressSpan>& ranges) const {
    std::vector<std::uint32_t> checksums;
    for (const AddressSpan& range : ranges) {
      checksums.push_back(
          Crc32c({bytes_.data() + (range.base - memory_->address()),
                  static_cast<std::size_t>(range.size)}));
    }
    return checksums;
  }

  std::vector<std::uint8_t> bytes_;
  std::optional<Allocation> memory_;
};

TEST_F(WeightsChecksumTest, AreThoseThatTheCpuTakes) {
  const ChecksumKernel kernel = Must(ChecksumKernel::Load(device));
  const std::vector<AddressSpan> ranges = Ranges();
  const std::vector<std::uint32_t> expected = Expected(ranges);
  const auto context = std::make_shared<const PrimaryContext>(
      Must(PrimaryContext::Retain(device)));
  const CurrentContext current = Must(context->MakeCurrent());
  constexpr std::size_t kWords = 20'000;
  constexpr std::uint32_t kUntouched = 0x5ca1ab1e;
  const PinnedBytes pinned =
      Must(PinnedBytes::Pin(device, context, 4 * kWords));
  auto* const words = static_cast<std::uint32_t*>(pinned.at());
  // However often it takes: ranges are cut where the room ends.
  for (const std::size_t room : {std::size_t{1}, std::size_t{7}, kWords - 1}) {
    std::fill(words, words + kWords, kUntouched);
    const std::vector<AddressSpan> some(
        ranges.begin(), room < 10 ? ranges.begin() + 130 : ranges.end());
    const std::vector<std::uint32_t> theirs(expected.begin(),
                                            expected.begin() + some.size());
    EXPECT_THAT(Must(kernel.Take(some, {words, room})),
                ElementsAreArray(theirs));
    EXPECT_EQ(words[room], kUntouched);
  }
  EXPECT_THAT(Must(kernel.Take({}, {words, kWords})), ::testing::IsEmpty());
}

TEST_F(WeightsChecksumTest, EveryFlippedBitOfARowIsSeen) {
  const ChecksumKernel kernel = Must(ChecksumKernel::Load(device));
  const auto context = std::make_shared<const PrimaryContext>(
      Must(PrimaryContext::Retain(device)));
  const CurrentContext current = Must(context->MakeCurrent());
  const PinnedBytes pinned = Must(PinnedBytes::Pin(device, context, 4096));
  const absl::Span<std::uint32_t> words(
      static_cast<std::uint32_t*>(pinned.at()), 1024);
  for (std::size_t bit = 0; bit < 520 * 8; bit += 37) {
    bytes_[bit / 8] ^= static_cast<std::uint8_t>(1 << bit % 8);
    ASSERT_EQ(driver()->cuMemcpyHtoD(memory_->address(), bytes_.data(), 1024),
              CUDA_SUCCESS);
    const std::vector<AddressSpan> range = {{memory_->address(), 1000}};
    ASSERT_THAT(Must(kernel.Take(range, words)),
                ElementsAreArray(Expected(range)))
        << bit;
  }
}

class WeightsChecksumSetTest : public WeightsChecksumTest {
 protected:
  static constexpr std::size_t kTensors = 40;

  WeightsChecksumSetTest() {
    std::ofstream(path_, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes_.data()),
               static_cast<std::streamsize>(bytes_.size()));
    for (std::size_t i = 0; i < kTensors; ++i) {
      Must(layout_.Add(absl::StrCat(i), DType::kUInt8, {LengthOf(i)}));
      reads_.push_back({i, 0, RowsOf(i)});
    }
    set_memory_ = Must(Allocation::Create(device, {.size = layout_.size()}));
  }

  static std::int64_t LengthOf(std::size_t i) {
    return static_cast<std::int64_t>(i % 7 * 16384 + i * 1009);
  }
  static TensorSetWriter::FileRows RowsOf(std::size_t i) {
    const auto length = static_cast<std::uint64_t>(LengthOf(i));
    return {i * 300'007, length, length};
  }
  TensorSetWriter Begin(const platform::Driver& driver) {
    return Must(TensorSetWriter::Begin(driver, set_memory_->address(),
                                       set_memory_->requested_size(), layout_));
  }
  std::vector<std::uint32_t> Sealed(TensorSetWriter& writer) {
    Must(writer.Seal({}));
    std::vector<std::uint32_t> checksums;
    for (const TensorInfo& info : writer.manifest().tensors) {
      checksums.push_back(info.checksum.value());
    }
    return checksums;
  }
  std::vector<std::uint32_t> OfTheFile() const {
    std::vector<std::uint32_t> checksums;
    for (std::size_t i = 0; i < kTensors; ++i) {
      const TensorSetWriter::FileRows rows = RowsOf(i);
      checksums.push_back(Crc32c({bytes_.data() + rows.offset,
                                  static_cast<std::size_t>(rows.row_bytes)}));
    }
    return checksums;
  }

  const PrivateDirectory directory_;
  const std::string path_ = directory_.path() + "/tensors";
  TensorLayout layout_{{.fingerprint = "read"}};
  std::vector<TensorSetWriter::FileRead> reads_;
  std::optional<Allocation> set_memory_;
};

TEST_F(WeightsChecksumSetTest, OfFilesTheDeviceTakesThem) {
  DriverFaults faults;
  const platform::Driver counting = FaultyDriver(driver(), &faults);
  std::optional<TensorSetWriter> begun = Begin(counting);
  TensorSetWriter& writer = *begun;
  faults.ResetCounts();
  Must(writer.ReadFiles({{path_}}, reads_, {.threads = 3}));
  // One that loads it, and one for all.
  EXPECT_EQ(faults.CallsByEntry()["cuLaunchKernel"], 2u);
  // A small one is the thread's own; none is missing then, and of nothing nobody
  // takes any.
  Must(writer.ReadFile(5, path_, RowsOf(5).offset));
  faults.ResetCounts();
  Must(writer.TakeChecksums());
  Must(writer.ReadFiles({{path_}}, {}, {}));
  EXPECT_THAT(
      faults.CallsByEntry(),
      ::testing::Not(::testing::Contains(::testing::Key("cuLaunchKernel"))));
  EXPECT_THAT(
      faults.CallsByEntry(),
      ::testing::Not(::testing::Contains(::testing::Key("cuMemCreate"))));
  EXPECT_EQ(faults.CallsByEntry()["cuMemcpyDtoH"], 0u);
  EXPECT_THAT(Sealed(writer), ElementsAreArray(OfTheFile()));
  // It would wait for all work of the device.
  faults.ResetCounts();
  begun.reset();
  EXPECT_EQ(faults.CallsByEntry()["cuMemFreeHost"], 0u);
  EXPECT_GT(faults.CallsByEntry()["cuMemUnmap"], 0u);
}

TEST_F(WeightsChecksumSetTest, AreComparedByTheDevice) {
  TensorSetWriter writer = Begin(driver());
  Must(writer.ReadFiles({{path_}}, reads_, {}));
  Must(writer.Seal({}));
  DriverFaults faults;
  const platform::Driver counting = FaultyDriver(driver(), &faults);
  const TensorSet set = Must(TensorSet::Open(counting, set_memory_->address(),
                                             set_memory_->requested_size()));
  faults.ResetCounts();
  EXPECT_EQ(Must(set.Verify()), kTensors);
  EXPECT_EQ(faults.CallsByEntry()["cuLaunchKernel"], 1u);
  EXPECT_EQ(faults.CallsByEntry()["cuMemcpyDtoH"], 0u);
  const CUdeviceptr last = set.address(set.manifest().tensors[33]) +
                           static_cast<std::uint64_t>(LengthOf(33)) - 1;
  std::uint8_t byte = 0;
  EXPECT_EQ(driver()->cuMemcpyDtoH(&byte, last, 1), CUDA_SUCCESS);
  EXPECT_EQ(driver()->cuMemsetD8(last, byte ^ 1, 1), CUDA_SUCCESS);
  EXPECT_EQ(driver()->cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  const absl::Status changed = set.Verify().status();
  EXPECT_TRUE(absl::IsDataLoss(changed));
  EXPECT_THAT(std::string(changed.message()), HasSubstr("tensor \"33\""));
}

TEST_F(WeightsChecksumSetTest, WithoutTheKernelAreTheSame) {
  DriverFaults faults;
  const platform::Driver old = FaultyDriver(driver(), &faults);
  TensorSetWriter writer = Begin(old);
  faults.Arm({.point = {.times = FaultPoint::kForEver},
              .entry = "cuLibraryGetKernel",
              .result = CUDA_ERROR_UNSUPPORTED_PTX_VERSION});
  Must(writer.ReadFiles({{path_}}, reads_, {}));
  EXPECT_EQ(faults.CallsByEntry()["cuLaunchKernel"], 0u);
  EXPECT_THAT(Sealed(writer), ElementsAreArray(OfTheFile()));
  const TensorSet set = Must(TensorSet::Open(old, set_memory_->address(),
                                             set_memory_->requested_size()));
  EXPECT_EQ(Must(set.Verify()), kTensors);
  EXPECT_EQ(faults.CallsByEntry()["cuLaunchKernel"], 0u);
  faults.Disarm();
  // And these two compare what the other took.
  EXPECT_EQ(Must(set.Verify()), kTensors);
  EXPECT_EQ(faults.CallsByEntry()["cuLaunchKernel"], 1u);
}

// Neither a device that is full nor a driver without a compiler keeps anybody from
// reading and comparing.
TEST_F(WeightsChecksumSetTest, WhatTheDeviceHasNoRoomForTheCpuDoes) {
  struct Refusal {
    const char* entry;
    CUresult result;
    std::uint64_t nth = 0;
  };
  for (const Refusal& refusal :
       {Refusal{"cuLaunchKernel", CUDA_ERROR_OUT_OF_MEMORY},
        // When all was read, for its checksums were to come.
        Refusal{"cuLaunchKernel", CUDA_ERROR_OUT_OF_MEMORY, 1},
        Refusal{"cuLaunchKernel", CUDA_ERROR_JIT_COMPILER_NOT_FOUND},
        Refusal{"cuLibraryGetKernel", CUDA_ERROR_JIT_COMPILATION_DISABLED},
        Refusal{"cuLibraryGetKernel", CUDA_ERROR_NO_BINARY_FOR_GPU}}) {
    DriverFaults faults;
    const platform::Driver refusing = FaultyDriver(driver(), &faults);
    TensorSetWriter writer = Begin(refusing);
    faults.Arm({.point = {.nth = refusal.nth, .times = FaultPoint::kForEver},
                .entry = refusal.entry,
                .result = refusal.result});
    Must(writer.ReadFiles({{path_}}, reads_, {}));
    EXPECT_THAT(Sealed(writer), ElementsAreArray(OfTheFile()));
    const TensorSet set = Must(TensorSet::Open(refusing, set_memory_->address(),
                                               set_memory_->requested_size()));
    EXPECT_EQ(Must(set.Verify()), kTensors);
    EXPECT_GE(faults.Disarm().fired, 2u) << refusal.entry;
  }
}

TEST_F(WeightsChecksumSetTest, WhatTheDriverRefusesIsTold) {
  DriverFaults faults;
  const platform::Driver failing = FaultyDriver(driver(), &faults);
  TensorSetWriter writer = Begin(failing);
  // Where the host has nothing to stage in, the CPU does not try either.
  struct Refusal {
    const char* entry;
    CUresult result;
    absl::StatusCode code;
  };
  for (const Refusal& refusal :
       {Refusal{"cuMemCreate", CUDA_ERROR_OUT_OF_MEMORY,
                absl::StatusCode::kResourceExhausted},
        Refusal{"cuLibraryGetKernel", CUDA_ERROR_INVALID_HANDLE,
                absl::StatusCode::kInvalidArgument},
        Refusal{"cuLaunchKernel", CUDA_ERROR_INVALID_HANDLE,
                absl::StatusCode::kInvalidArgument}}) {
    std::function<void()> then;
    if (refusal.entry == std::string_view("cuMemCreate")) {
      then = [&] {
        faults.Arm({.point = {.times = FaultPoint::kForEver},
                    .entry = "cuMemHostAlloc"});
      };
    }
    faults.Arm({.point = {.times = FaultPoint::kForEver},
                .entry = refusal.entry,
                .result = refusal.result,
                .then = then});
    const absl::Status read = writer.ReadFiles({{path_}}, reads_, {});
    EXPECT_EQ(read.code(), refusal.code) << refusal.entry << ": " << read;
    EXPECT_THAT(std::string(read.message()), HasSubstr(refusal.entry));
    EXPECT_GE(faults.Disarm().fired, 1u);
  }
  // What was read meanwhile has no checksum yet.
  Must(writer.TakeChecksums());
  Must(writer.ReadFiles({{path_}}, reads_, {}));
  EXPECT_THAT(Sealed(writer), ElementsAreArray(OfTheFile()));
}

}  // namespace
}  // namespace vmm::testing
