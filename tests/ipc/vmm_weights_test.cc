// Tensor sets in memory, and under names of a keeper, in several processes.
#include <gmock/gmock.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tests/gpu/loaded_kernel.h"
#include "tests/ipc/keeper_ipc_test.h"
#include "tests/support/driver_faults.h"
#include "tests/unit/vmm_weights_samples.h"
#include "vmm/memory/adopted_memory.h"
#include "vmm/memory/internal/wire.h"
#include "vmm/pool/pool.h"
#include "vmm/weights/internal/trailer.h"
#include "vmm/weights/tensor_set.h"

namespace vmm::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Args = std::vector<std::string>;

constexpr char kName[] = "model/tp-0";

std::string Text(const absl::Status& status) {
  return std::string(status.message());
}

// Sixteen tensors of some size, and an alias.
TensorLayout LayoutOf(const std::string& fingerprint = "a") {
  TensorLayout layout({.fingerprint = fingerprint});
  for (int i = 0; i < 16; ++i) {
    Must(layout.Add(absl::StrCat("layer.", i), DType::kUInt8, {1000 + i}));
  }
  Must(layout.AddAlias("tied", 3, DType::kUInt8, {1003}));
  return layout;
}

// Each tensor has a pattern of its own, made of `seed` and its place.
absl::Status FillSet(TensorSetWriter& writer, std::uint64_t seed) {
  for (std::size_t i = 0; i < writer.manifest().tensors.size(); ++i) {
    const TensorInfo& tensor = writer.manifest().tensors[i];
    if (tensor.alias_of.has_value()) continue;
    const absl::Status written = writer.Write(
        i, 0,
        Pattern(100 * seed + i, static_cast<std::size_t>(tensor.extent())));
    if (!written.ok()) return written;
  }
  return absl::OkStatus();
}

// All of it is what FillSet() wrote.
void ExpectFilled(const TensorSet& set, std::uint64_t seed) {
  for (std::size_t i = 0; i < set.manifest().tensors.size(); ++i) {
    const TensorInfo& tensor = set.manifest().tensors[i];
    ExpectPattern(
        set.address(tensor), static_cast<std::size_t>(tensor.extent()),
        100 * seed + tensor.alias_of.value_or(static_cast<std::uint32_t>(i)));
  }
}

absl::StatusOr<std::uint64_t> PublishFilled(KeeperClient& keeper,
                                            const Device& device,
                                            std::uint64_t seed) {
  const TensorLayout layout = LayoutOf();
  const Allocation memory =
      Must(Allocation::Create(device, {.size = layout.size()}));
  TensorSetWriter writer = Must(TensorSetWriter::Begin(
      TestDriver(), memory.address(), memory.requested_size(), layout));
  Must(FillSet(writer, seed));
  return PublishTensorSet(keeper, kName, memory.shareable(), writer, Late());
}

class TensorSetTest : LoadedKernel, public DriverTest {
 protected:
  Allocation MakeFor(const TensorLayout& layout) {
    return Must(Allocation::Create(device, {.size = layout.size()}));
  }
  TensorSetWriter Begin(const Allocation& memory, const TensorLayout& layout) {
    return Must(TensorSetWriter::Begin(driver(), memory.address(),
                                       memory.requested_size(), layout));
  }
  absl::StatusOr<TensorSet> Open(const Allocation& memory) {
    return TensorSet::Open(driver(), memory.address(), memory.requested_size());
  }
};

TEST_F(TensorSetTest, IsReadAsItWasWritten) {
  const TensorLayout layout = SampleLayout();
  const Allocation memory = MakeFor(layout);
  TensorSetWriter writer = Begin(memory, layout);
  Must(FillSet(writer, 1));
  Must(writer.Seal({.generation = 7}));
  const TensorSet set = Must(Open(memory));
  EXPECT_EQ(set.manifest(), writer.manifest());
  EXPECT_EQ(set.manifest().generation, 7u);
  EXPECT_EQ(set.manifest().metadata.at("format"), "pt");
  for (const TensorInfo& tensor : set.manifest().tensors) {
    ASSERT_NE(set.Find(tensor.name), nullptr);
    EXPECT_EQ(*set.Find(tensor.name), tensor);
    EXPECT_EQ(tensor.checksum.has_value(), !tensor.alias_of.has_value());
  }
  EXPECT_EQ(set.Find("embed"), nullptr);
  ExpectPattern(set.address(*set.Find("lm_head.weight")), 3200, 100);
  EXPECT_EQ(Must(set.Verify()), 4u);
}

TEST_F(TensorSetTest, OfMemoryOfTheHostTheSame) {
  const TensorLayout layout = LayoutOf();
  const Allocation memory = Must(Allocation::Create(
      device, {.size = layout.size(),
               .host_numa_node = 0,
               .also = {{Location::HostNuma(0), Access::kReadWrite}}}));
  TensorSetWriter writer = Begin(memory, layout);
  Must(FillSet(writer, 1));
  Must(writer.Seal({}));
  const TensorSet set = Must(Open(memory));
  EXPECT_EQ(Must(set.Verify()), 16u);
  const auto* bytes =
      reinterpret_cast<const std::uint8_t*>(set.address(*set.Find("layer.5")));
  EXPECT_TRUE(std::equal(bytes, bytes + 1005, Pattern(105, 1005).begin()));
}

TEST_F(TensorSetTest, InABlockOfAPool) {
  const TensorLayout layout = LayoutOf();
  auto pool = Must(Pool::Create(device, {}));
  const CUdeviceptr block = Must(pool->Allocate(layout.size(), nullptr));
  // What was there before: it must not be taken for the set.
  for (std::uint64_t seed = 1; seed < 3; ++seed) {
    TensorSetWriter writer =
        Must(TensorSetWriter::Begin(driver(), block, layout.size(), layout));
    EXPECT_TRUE(absl::IsFailedPrecondition(
        TensorSet::Open(driver(), block, layout.size()).status()));
    Must(FillSet(writer, seed));
    Must(writer.Seal({}));
    ExpectFilled(Must(TensorSet::Open(driver(), block, layout.size())), seed);
  }
  Must(pool->Free(block, nullptr));
}

TEST_F(TensorSetTest, IsNoneUntilItIsSealed) {
  const TensorLayout layout = LayoutOf();
  const Allocation memory = MakeFor(layout);
  const auto expect_none = [&] {
    const absl::Status none = Open(memory).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(none)) << none;
    EXPECT_THAT(Text(none), HasSubstr("no sealed tensor set"));
  };
  expect_none();
  TensorSetWriter writer = Begin(memory, layout);
  Must(FillSet(writer, 1));
  expect_none();
  Must(writer.Seal({}));
  ExpectFilled(Must(Open(memory)), 1);
  // The next one in the same memory takes it away first.
  Begin(memory, layout);
  expect_none();
}

TEST_F(TensorSetTest, TheWriterRefusesWhatIsNoPartOfATensor) {
  const TensorLayout layout = LayoutOf();
  const Allocation memory = MakeFor(layout);
  TensorSetWriter writer = Begin(memory, layout);
  const std::vector<std::uint8_t> bytes(1001);
  EXPECT_TRUE(absl::IsOutOfRange(writer.Write(0, 0, bytes)));
  EXPECT_TRUE(absl::IsOutOfRange(writer.Write(1, 1, bytes)));
  EXPECT_TRUE(absl::IsOutOfRange(writer.Write(1, UINT64_MAX, bytes)));
  EXPECT_TRUE(absl::IsOutOfRange(writer.Write(17, 0, {})));
  const absl::Status alias = writer.Write(16, 0, {bytes.data(), 3});
  EXPECT_TRUE(absl::IsInvalidArgument(alias));
  EXPECT_THAT(Text(alias), AllOf(HasSubstr("tied"), HasSubstr("layer.3")));
  EXPECT_TRUE(absl::IsInvalidArgument(writer.Seal({.generation = 0})));
  Must(writer.Seal({}));
  EXPECT_TRUE(absl::IsFailedPrecondition(writer.Write(0, 0, {})));
  EXPECT_TRUE(absl::IsFailedPrecondition(writer.Seal({})));
}

TEST_F(TensorSetTest, NeedsRoomAndMemoryOfTheDrivers) {
  const TensorLayout layout = LayoutOf();
  const Allocation memory = MakeFor(layout);
  EXPECT_TRUE(
      absl::IsInvalidArgument(TensorSetWriter::Begin(driver(), memory.address(),
                                                     layout.size() - 1, layout)
                                  .status()));
  EXPECT_TRUE(absl::IsInvalidArgument(
      TensorSetWriter::Begin(driver(), memory.address(), 1ull << 50, layout)
          .status()));
  std::vector<std::uint8_t> plain(1 << 16);
  const auto address = reinterpret_cast<CUdeviceptr>(plain.data());
  EXPECT_TRUE(absl::IsFailedPrecondition(
      TensorSetWriter::Begin(driver(), address, plain.size(), layout)
          .status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(
      TensorSet::Open(driver(), address, plain.size()).status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(
      TensorSet::Open(driver(), memory.address(), 8).status()));
}

TEST_F(TensorSetTest, WhatSomebodyWroteToAfterwardsIsFound) {
  const TensorLayout layout = LayoutOf();
  const Allocation memory = MakeFor(layout);
  TensorSetWriter writer = Begin(memory, layout);
  Must(FillSet(writer, 1));
  Must(writer.Seal({}));
  const TensorSet set = Must(Open(memory));
  EXPECT_EQ(Must(set.Verify()), 16u);
  EXPECT_EQ(
      driver()->cuMemsetD8(set.address(*set.Find("layer.7")) + 500, 0xa5, 1),
      CUDA_SUCCESS);
  const absl::Status damaged = set.Verify().status();
  EXPECT_TRUE(absl::IsDataLoss(damaged)) << damaged;
  EXPECT_THAT(Text(damaged), HasSubstr("\"layer.7\""));
}

// Bytes of the program's own kernels have a checksum if it is asked for.
TEST_F(TensorSetTest, ChecksumsOfWhatDidNotComeInOrderAreTakenWhenAskedFor) {
  for (const bool all : {false, true}) {
    const TensorLayout layout = LayoutOf();
    const Allocation memory = MakeFor(layout);
    TensorSetWriter writer = Begin(memory, layout);
    Must(FillSet(writer, 1));
    WritePattern(writer.address(2), 1002, 5);
    Must(writer.Write(2, 4, Pattern(6, 10)));
    if (all) Must(writer.TakeChecksums());
    Must(writer.Seal({}));
    EXPECT_TRUE(absl::IsFailedPrecondition(writer.TakeChecksums()));
    const TensorSet set = Must(Open(memory));
    EXPECT_EQ(set.Find("layer.2")->checksum.has_value(), all);
    EXPECT_EQ(Must(set.Verify()), all ? 16u : 15u);
  }
}

TEST_F(TensorSetTest, IsCopiedFromOtherMemoryOfTheDevice) {
  const TensorLayout layout = LayoutOf();
  const Allocation from = Must(Allocation::Create(device, {.size = kGranule}));
  WritePattern(from.address(), 1002, 102);
  for (const bool on_host : {false, true}) {
    AllocationOptions options{.size = layout.size()};
    if (on_host) {
      options.host_numa_node = 0;
      options.also = {{Location::HostNuma(0), Access::kReadWrite}};
    }
    const Allocation memory = Must(Allocation::Create(device, options));
    TensorSetWriter writer = Begin(memory, layout);
    Must(FillSet(writer, 9));
    Must(writer.CopyFrom(2, from.address()));
    EXPECT_TRUE(absl::IsInvalidArgument(writer.CopyFrom(16, from.address())));
    Must(writer.TakeChecksums());
    Must(writer.Seal({}));
    const TensorSet set = Must(Open(memory));
    ExpectPattern(set.address(*set.Find("layer.2")), 1002, 102);
    EXPECT_EQ(Must(set.Verify()), 16u);
  }
}

TEST_F(TensorSetTest, IsReadFromFilesByManyThreads) {
  const PrivateDirectory directory;
  const std::string path = directory.path() + "/weights";
  const TensorLayout layout = LayoutOf();
  std::vector<std::uint64_t> places;
  {
    std::ofstream file(path, std::ios::binary);
    file << "head";
    for (std::size_t i = 0; i < 16; ++i) {
      places.push_back(static_cast<std::uint64_t>(file.tellp()));
      const std::vector<std::uint8_t> bytes = Pattern(100 + i, 1000 + i);
      file.write(reinterpret_cast<const char*>(bytes.data()),
                 static_cast<std::streamsize>(bytes.size()));
    }
  }
  const Allocation memory = MakeFor(layout);
  TensorSetWriter writer = Begin(memory, layout);
  std::vector<std::thread> threads;
  std::vector<absl::Status> read(16);
  for (std::size_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (std::size_t i = thread; i < 16; i += 4) {
        read[i] = writer.ReadFile(i, path, places[i]);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : read) Must(status);
  Must(writer.Seal({}));
  const TensorSet set = Must(Open(memory));
  ExpectFilled(set, 1);
  EXPECT_EQ(Must(set.Verify()), 16u);
}

TEST_F(TensorSetTest, AFileThatIsCutOrMissingIsAnError) {
  const PrivateDirectory directory;
  const std::string path = directory.path() + "/weights";
  std::ofstream(path, std::ios::binary) << std::string(1500, 'x');
  const TensorLayout layout = LayoutOf();
  const Allocation memory = MakeFor(layout);
  TensorSetWriter writer = Begin(memory, layout);
  Must(writer.ReadFile(0, path, 500));
  for (const std::uint64_t at : {std::uint64_t{501}, std::uint64_t{1500},
                                 std::uint64_t{1} << 40, UINT64_MAX}) {
    const absl::Status cut = writer.ReadFile(0, path, at);
    EXPECT_TRUE(absl::IsDataLoss(cut)) << at << cut;
    EXPECT_THAT(Text(cut), AllOf(HasSubstr(path), HasSubstr("layer.0")));
  }
  EXPECT_TRUE(absl::IsNotFound(writer.ReadFile(0, path + "-no", 0)));
}

// What a rank takes of a tensor that is cut in another dimension than the first:
// short rows and long ones, some longer than what is read at once.
TEST_F(TensorSetTest, ASliceOfATensorIsReadFromAFile) {
  const PrivateDirectory directory;
  const std::string path = directory.path() + "/weights";
  const std::vector<std::uint8_t> bytes = Pattern(7, 23 << 20);
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  struct Case {
    std::uint64_t row, pitch, rows;
  };
  for (const Case& one :
       {Case{24, 96, 1000}, Case{24, 24, 1000}, Case{100, 5 << 20, 3},
        Case{16383, 16385, 600}, Case{16384, 16385, 600},
        Case{20000, 60000, 300}, Case{5 << 20, 11 << 20, 2}, Case{7, 8, 1}}) {
    TensorLayout layout(TensorSetNotes{});
    Must(layout.Add("part", DType::kUInt8,
                    {static_cast<std::int64_t>(one.rows),
                     static_cast<std::int64_t>(one.row)}));
    std::vector<std::uint8_t> expected;
    for (std::uint64_t i = 0; i < one.rows; ++i) {
      const auto row =
          bytes.begin() + static_cast<std::ptrdiff_t>(13 + i * one.pitch);
      expected.insert(expected.end(), row,
                      row + static_cast<std::ptrdiff_t>(one.row));
    }
    for (const bool on_host : {false, true}) {
      SCOPED_TRACE(absl::StrCat(one.row, " of ", one.pitch, ", ", one.rows,
                                " times, on host ", on_host));
      AllocationOptions options{.size = layout.size()};
      if (on_host) {
        options.host_numa_node = 0;
        options.also = {{Location::HostNuma(0), Access::kReadWrite}};
      }
      const Allocation memory = Must(Allocation::Create(device, options));
      TensorSetWriter writer = Begin(memory, layout);
      Must(writer.ReadFileRows(0, path, {13, one.row, one.pitch}));
      Must(writer.Seal({}));
      const TensorSet set = Must(Open(memory));
      EXPECT_EQ(set.manifest().tensors[0].checksum, Crc32c(expected));
      EXPECT_EQ(Must(set.Verify()), 1u);  // Of what is in the memory.
    }
  }
}

TEST_F(TensorSetTest, RowsThatAreNoSliceAreRefused) {
  const PrivateDirectory directory;
  const std::string path = directory.path() + "/weights";
  std::ofstream(path, std::ios::binary) << std::string(5000, 'x');
  const TensorLayout layout = LayoutOf();
  const Allocation memory = MakeFor(layout);
  TensorSetWriter writer = Begin(memory, layout);
  const auto read = [&](std::uint64_t offset, std::uint64_t row,
                        std::uint64_t pitch) {
    return writer.ReadFileRows(0, path, {offset, row, pitch});
  };
  Must(read(0, 100, 500));
  for (const auto& [row, pitch] :
       {std::pair<std::uint64_t, std::uint64_t>{0, 500},
        {300, 500},  // Of 1000 bytes.
        {2000, 2000},
        {100, 99},
        {100, UINT64_MAX / 8},
        {UINT64_MAX, UINT64_MAX}}) {
    const absl::Status refused = read(0, row, pitch);
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << row << refused;
    EXPECT_THAT(Text(refused), HasSubstr("layer.0"));
  }
  for (const std::uint64_t at : {std::uint64_t{401}, UINT64_MAX}) {
    EXPECT_TRUE(absl::IsDataLoss(read(at, 100, 500))) << at;
  }
  EXPECT_TRUE(absl::IsDataLoss(read(0, 100, INT64_MAX / 10)));
}

// Of a model: small tensors side by side, large ones, and such as are cut in
// several ways; on the device and on the host, by any number of threads.
TEST_F(TensorSetTest, ManyTensorsAreReadFromFilesByThreads) {
  const PrivateDirectory directory;
  const std::vector<std::string> paths = {directory.path() + "/0",
                                          directory.path() + "/1"};
  std::vector<std::vector<std::uint8_t>> files;
  for (const std::string& path : paths) {
    files.push_back(Pattern(files.size() + 1, 12 << 20));
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(files.back().data()),
               static_cast<std::streamsize>(files.back().size()));
  }
  using FileRead = TensorSetWriter::FileRead;
  struct Case {
    std::uint64_t rows;
    std::vector<TensorSetWriter::FileRows> parts;
  };
  std::vector<Case> cases;
  for (std::uint64_t i = 0; i < 200; ++i) {  // The last of 300 bytes.
    cases.push_back({1, {{7 + 256 * i, i == 199 ? 300u : 256u, 1000}}});
  }
  cases.push_back({1, {{1 << 20, 9 << 20, 9 << 20}}});
  cases.push_back({0, {{0, 8, 8}}});
  // Parts of rows: short and long ones, and nothing of one.
  cases.push_back({1000, {{5, 24, 96}, {40, 8, 96}, {60, 0, 96}}});
  cases.push_back({100, {{5, 20000, 60000}, {30000, 16, 60000}}});
  cases.push_back({2, {{1, 3, 5 << 20}, {3 << 20, 100, 5 << 20}}});
  cases.push_back({3, {{9, 1 << 20, 3 << 20}, {2 << 20, 600000, 3 << 20}}});
  TensorLayout layout(TensorSetNotes{});
  std::vector<FileRead> reads;
  std::vector<std::uint32_t> checksums;
  std::uint64_t total = 0;
  for (const Case& one : cases) {
    const std::size_t file = checksums.size() % 3 == 0 ? 1 : 0;
    std::vector<std::uint8_t> expected;
    std::uint64_t row_bytes = 0;
    for (const auto& part : one.parts) row_bytes += part.row_bytes;
    for (std::uint64_t row = 0; row < one.rows; ++row) {
      for (const auto& part : one.parts) {
        const auto begin =
            files[file].begin() +
            static_cast<std::ptrdiff_t>(part.offset + row * part.pitch);
        expected.insert(expected.end(), begin,
                        begin + static_cast<std::ptrdiff_t>(part.row_bytes));
      }
    }
    const std::size_t place =
        Must(layout.Add(absl::StrCat("t", checksums.size()), DType::kUInt8,
                        {static_cast<std::int64_t>(one.rows),
                         static_cast<std::int64_t>(row_bytes)}));
    for (const auto& part : one.parts) reads.push_back({place, file, part});
    checksums.push_back(Crc32c(expected));
    total += expected.size();
  }
  for (const bool on_host : {false, true}) {
    for (const std::size_t threads : {0u, 1u, 5u}) {
      SCOPED_TRACE(absl::StrCat(threads, " threads, on host ", on_host));
      AllocationOptions options{.size = layout.size()};
      if (on_host) {
        options.host_numa_node = 0;
        options.also = {{Location::HostNuma(0), Access::kReadWrite}};
      }
      const Allocation memory = Must(Allocation::Create(device, options));
      TensorSetWriter writer = Begin(memory, layout);
      std::uint64_t told = 0;
      Must(writer.ReadFiles(
          paths, reads,
          {.threads = threads,
           .progress = [&](std::uint64_t done, std::uint64_t all) {
             EXPECT_GE(done, told);
             EXPECT_EQ(all, total);
             told = done;
             return absl::OkStatus();
           }}));
      EXPECT_EQ(told, total);
      Must(writer.Seal({}));
      const TensorSet set = Must(Open(memory));
      for (std::size_t i = 0; i < checksums.size(); ++i) {
        EXPECT_EQ(set.manifest().tensors[i].checksum, checksums[i]) << i;
      }
      EXPECT_EQ(Must(set.Verify()), checksums.size());
    }
  }
}

TEST_F(TensorSetTest, FilesThatCannotBeReadAreAnErrorOfAllReads) {
  const PrivateDirectory directory;
  const std::string path = directory.path() + "/weights";
  std::ofstream(path, std::ios::binary) << std::string(3 * 1024 + 100, 'x');
  TensorLayout layout(TensorSetNotes{});
  std::vector<TensorSetWriter::FileRead> reads;
  for (std::uint64_t i = 0; i < 5; ++i) {
    Must(layout.Add(absl::StrCat("t", i), DType::kUInt8, {1024}));
    reads.push_back({static_cast<std::size_t>(i), 0, {1024 * i, 1024, 1024}});
  }
  const Allocation memory = MakeFor(layout);
  TensorSetWriter writer = Begin(memory, layout);
  // All five are read at once: it says in which the file ends.
  const absl::Status cut = writer.ReadFiles({path}, reads, {.threads = 3});
  EXPECT_TRUE(absl::IsDataLoss(cut)) << cut;
  EXPECT_THAT(Text(cut), AllOf(HasSubstr(path), HasSubstr("\"t3\"")));
  EXPECT_TRUE(absl::IsNotFound(
      writer.ReadFiles({path, path + "-no"}, {reads.data(), 2}, {})));
  EXPECT_TRUE(absl::IsOutOfRange(writer.ReadFiles({}, reads, {})));
  reads[0].tensor = 9;
  EXPECT_TRUE(absl::IsOutOfRange(writer.ReadFiles({path}, reads, {})));
  Must(writer.ReadFiles({path}, {}, {}));
  // What whoever is told says is the end of it.
  int told = 0;
  EXPECT_TRUE(absl::IsCancelled(writer.ReadFiles(
      {path}, {reads.data() + 1, 2},
      {.progress = [&](std::uint64_t, std::uint64_t) {
        return ++told == 1 ? absl::CancelledError("no") : absl::OkStatus();
      }})));
  EXPECT_EQ(told, 1);
  Must(writer.ReadFiles({path}, {reads.data() + 1, 2}, {}));
}

// What is side by side goes to the device at once; a copy that fails ends it all.
TEST_F(TensorSetTest, SmallTensorsSideBySideAreOneCopy) {
  const PrivateDirectory directory;
  const std::string path = directory.path() + "/weights";
  std::ofstream(path, std::ios::binary) << std::string(1000 * 256, 'x');
  TensorLayout layout(TensorSetNotes{});
  std::vector<TensorSetWriter::FileRead> reads;
  for (std::uint64_t i = 0; i < 1000; ++i) {
    const std::size_t place =
        Must(layout.Add(absl::StrCat("t", i), DType::kUInt8, {256}));
    reads.push_back({place, 0, {256 * i, 256, 256}});
  }
  const Allocation memory = MakeFor(layout);
  DriverFaults faults;
  const platform::Driver counted = FaultyDriver(driver(), &faults);
  TensorSetWriter writer = Must(TensorSetWriter::Begin(
      counted, memory.address(), memory.requested_size(), layout));
  faults.ResetCounts();
  Must(writer.ReadFiles({path}, reads, {.threads = 8}));
  EXPECT_EQ(faults.CallsByEntry()["cuMemcpyHtoDAsync"], 1u);
  std::swap(reads[0].rows, reads[999].rows);  // Three pieces now.
  faults.ResetCounts();
  Must(writer.ReadFiles({path}, reads, {.threads = 8}));
  EXPECT_EQ(faults.CallsByEntry()["cuMemcpyHtoDAsync"], 3u);
  faults.Arm({.point = {.nth = 2},
              .calls = CallKind::kAny,
              .entry = "cuMemcpyHtoDAsync",
              .result = CUDA_ERROR_OUT_OF_MEMORY});
  const absl::Status failed = writer.ReadFiles({path}, reads, {.threads = 2});
  EXPECT_EQ(faults.Disarm().fired, 1u);
  EXPECT_TRUE(absl::IsResourceExhausted(failed)) << failed;
  EXPECT_THAT(Text(failed), HasSubstr("cuMemcpyHtoDAsync"));
}

// It frees the memory next: what was still copied there would end the context.
TEST_F(TensorSetTest, AWriterThatGivesUpLeavesNoCopyUnderWay) {
  const TensorLayout layout = LayoutOf();
  const std::vector<std::uint8_t> bytes(layout.manifest().tensors[0].extent());
  for (int i = 0; i < 200; ++i) {
    const Allocation memory = MakeFor(layout);
    TensorSetWriter writer = Begin(memory, layout);
    Must(writer.Write(0, 0, bytes));
    // By destruction, and because another set is begun.
    if (i % 2 == 0) writer = Begin(memory, layout);
  }
  EXPECT_EQ(driver()->cuCtxSynchronize(), CUDA_SUCCESS);
}

// What a maker that means harm may leave where readers look.
TEST_F(TensorSetTest, HostileBytesAreATypedError) {
  const TensorLayout layout = LayoutOf();
  const Allocation memory = MakeFor(layout);
  TensorSetWriter writer = Begin(memory, layout);
  Must(FillSet(writer, 1));
  Must(writer.Seal({}));
  const std::uint64_t size = memory.requested_size();
  const auto open_with = [&](const weights::Trailer& trailer) {
    const std::vector<std::uint8_t> bytes = weights::EncodeTrailer(trailer);
    EXPECT_EQ(driver()->cuMemcpyHtoD(memory.address() + size - bytes.size(),
                                     bytes.data(), bytes.size()),
              CUDA_SUCCESS);
    return Open(memory).status();
  };
  const std::uint64_t offset = weights::AlignUp(layout.manifest().data_bytes);
  const std::uint64_t length = EncodedSize(layout.manifest());
  Must(open_with({offset, length}));
  for (const weights::Trailer& trailer :
       {weights::Trailer{offset, length - 1},
        weights::Trailer{offset + 1, length}, weights::Trailer{0, length},
        weights::Trailer{offset, 0}, weights::Trailer{UINT64_MAX - 8, 16},
        weights::Trailer{size, 1}, weights::Trailer{0, size}}) {
    const absl::Status status = open_with(trailer);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  }
  // A manifest that says that it is where its data are.
  TensorManifest overlapping = layout.manifest();
  overlapping.generation = 1;
  overlapping.data_bytes = offset + 1;
  for (const std::uint64_t generation : {0, 1}) {
    overlapping.generation = generation;
    const std::vector<std::uint8_t> bytes = EncodeManifest(overlapping);
    EXPECT_EQ(driver()->cuMemcpyHtoD(memory.address() + offset, bytes.data(),
                                     bytes.size()),
              CUDA_SUCCESS);
    const absl::Status status = open_with({offset, bytes.size()});
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  }
}

class KeptSetTest : public KeeperTest {
 protected:
  absl::StatusOr<KeptTensorSet> Attach(KeeperClient& client) {
    return AttachTensorSet(client, kName, driver(), {}, Late());
  }
};

// Publishes filled with pattern SEED and ends: ADDRESS, SEED.
int PublishAndDie(const Args& args) {
  const Here here;
  KeeperClient keeper =
      Must(KeeperClient::Connect({.address = args[0]}, Late()));
  std::uint64_t seed = 0;
  platform::Check(absl::SimpleAtoi(args[1], &seed), "a seed");
  Must(PublishFilled(keeper, here.device, seed));
  KillThisProcess();
}
const bool kPublishAndDie =
    RegisterChild("weights-publish-and-die", &PublishAndDie);

TEST_F(KeptSetTest, IsThereWhenItsMakerWasKilled) {
  const std::unique_ptr<keeper::Server> server = Start();
  KeeperClient client = Client();
  for (std::uint64_t generation = 1; generation < 4; ++generation) {
    Child child =
        Child::Start("weights-publish-and-die",
                     {keeper_address(), absl::StrCat(10 + generation)});
    const std::int64_t pid = child.pid();
    EXPECT_EQ(child.Wait(), Child::kKilled);
    const KeptTensorSet kept = Must(Attach(client));
    EXPECT_EQ(kept.set.manifest().generation, generation);
    ExpectFilled(kept.set, 10 + generation);
    ExpectReadOnly(kept.memory.address());
    EXPECT_EQ(Must(kept.set.Verify()), 16u);
    const KeptMemory listed = *Listed(client, kName);
    EXPECT_EQ(listed.state, KeptState::kSealed);
    EXPECT_EQ(listed.pid, pid);
    EXPECT_EQ(server->names(), 1u);
  }
}

TEST_F(KeptSetTest, WhoHasTheOldOneKeepsItAndItGoesWithTheLast) {
  const std::unique_ptr<keeper::Server> server = Start();
  KeeperClient client = Client();
  const auto free_bytes = [&] {
    std::size_t free = 0, total = 0;
    EXPECT_EQ(driver()->cuMemGetInfo(&free, &total), CUDA_SUCCESS);
    return free;
  };
  EXPECT_EQ(Must(PublishFilled(client, device, 1)), 1u);
  const std::size_t with_one = free_bytes();
  {
    const KeptTensorSet first = Must(Attach(client));
    EXPECT_EQ(Must(PublishFilled(client, device, 2)), 2u);
    const KeptTensorSet second = Must(Attach(client));
    ExpectFilled(first.set, 1);
    ExpectFilled(second.set, 2);
    EXPECT_LT(free_bytes(), with_one);
    // As sealed memory is.
    EXPECT_TRUE(absl::IsFailedPrecondition(
        AttachTensorSet(client, kName, driver(),
                        {.import = {.access = Access::kReadWrite}}, Late())
            .status()));
  }
  ExpectSoon([&] { return free_bytes() == with_one; });
  Must(client.Drop(kName, Late()));
  const absl::Status dropped = Attach(client).status();
  EXPECT_TRUE(absl::IsNotFound(dropped)) << dropped;
  // The name is free: it begins anew.
  EXPECT_EQ(Must(PublishFilled(client, device, 3)), 1u);
}

TEST_F(KeptSetTest, OfTwoWritersOneIsToldThatItWasTooLate) {
  const std::unique_ptr<keeper::Server> server = Start();
  KeeperClient client = Client();
  Must(PublishFilled(client, device, 1));
  const TensorLayout layout = LayoutOf();
  const Allocation memory =
      Must(Allocation::Create(device, {.size = layout.size()}));
  const MemoryId first = Must(Attach(client)).memory.ticket().id;
  Must(PublishFilled(client, device, 2));
  const absl::Status late =
      client.Replace(kName, memory.shareable(), first, Late());
  EXPECT_TRUE(absl::IsAborted(late)) << late;
  EXPECT_THAT(Text(late), HasSubstr("replaced meanwhile"));
  EXPECT_TRUE(absl::IsAlreadyExists(
      client.Replace(kName, memory.shareable(), std::nullopt, Late())));
  EXPECT_TRUE(absl::IsNotFound(
      client.Replace("other", memory.shareable(), first, Late())));
  ExpectFilled(Must(Attach(client)).set, 2);
}

// What others do between the look at what is kept and the keeper's answer.
class RacedSetTest : public KeptSetTest {
 protected:
  // Publishes while `others` come in between.
  absl::Status PublishWhile(const std::function<void()>& others) {
    const TensorLayout layout = LayoutOf();
    const Allocation memory = Make(layout.size());
    DriverFaults faults;
    TensorSetWriter writer = Must(TensorSetWriter::Begin(
        FaultyDriver(driver(), &faults), memory.address(),
        memory.requested_size(), layout));
    Must(FillSet(writer, 7));
    KeeperClient client = Client();
    // Sealing waits for the device, and comes after the look.
    faults.Arm({.entry = "cuStreamSynchronize",
                .result = CUDA_SUCCESS,
                .then = others});
    absl::Status published =
        PublishTensorSet(client, kName, memory.shareable(), writer, Late())
            .status();
    EXPECT_EQ(faults.Disarm().fired, 1u);
    EXPECT_FALSE(
        writer.is_sealed());  // The set is nobody's: it may come again.
    return published;
  }
};

TEST_F(RacedSetTest, OfTwoThatPublishTheFirstOneIsToldThatItWasTooLate) {
  const std::unique_ptr<keeper::Server> server = Start();
  KeeperClient other = Client();
  EXPECT_TRUE(absl::IsNotFound(Attach(other).status()));
  const absl::Status late =
      PublishWhile([&] { Must(PublishFilled(other, device, 1)); });
  EXPECT_TRUE(absl::IsAborted(late)) << late;
  EXPECT_THAT(Text(late), AllOf(HasSubstr(kName), HasSubstr("publish again")));
  ExpectFilled(Must(Attach(other)).set, 1);
  EXPECT_EQ(Must(PublishFilled(other, device, 2)), 2u);
}

TEST_F(RacedSetTest, ASetThatIsDroppedMeanwhileIsPublishedAnew) {
  const std::unique_ptr<keeper::Server> server = Start();
  KeeperClient other = Client();
  Must(PublishFilled(other, device, 1));
  const absl::Status late =
      PublishWhile([&] { Must(other.Drop(kName, Late())); });
  EXPECT_TRUE(absl::IsAborted(late)) << late;
  EXPECT_THAT(Text(late), AllOf(HasSubstr(kName), HasSubstr("dropped"),
                                HasSubstr("publish again")));
  EXPECT_EQ(server->names(), 0u);
  EXPECT_EQ(Must(PublishFilled(other, device, 2)), 1u);
}

// To publish again would change nothing.
TEST_F(RacedSetTest, ANameThatIsTakenForSomethingElseIsTaken) {
  const std::unique_ptr<keeper::Server> server = Start();
  KeeperClient other = Client();
  EXPECT_TRUE(absl::IsNotFound(Attach(other).status()));
  const Allocation pattern = MakePattern(kGranule, 1);
  const absl::Status taken = PublishWhile(
      [&] { Must(other.Put(kName, pattern.shareable(), Late())); });
  EXPECT_TRUE(absl::IsAlreadyExists(taken)) << taken;
  Must(other.Drop(kName, Late()));
  // Nor while it is being made.
  KeeperClient client = Client();
  EXPECT_TRUE(absl::IsNotFound(Attach(client).status()));
  Must(other.AttachOrCreate(
      kName, kGranule, driver(), {},
      [&]() -> absl::StatusOr<Allocation> {
        const absl::Status made = PublishFilled(client, device, 1).status();
        EXPECT_TRUE(absl::IsAlreadyExists(made)) << made;
        return MakePattern(kGranule, 1);
      },
      Late()));
}

TEST_F(KeptSetTest, ManyWritersAndReadersSeeWholeGenerationsInOrder) {
  const std::unique_ptr<keeper::Server> server = Start();
  KeeperClient client = Client();
  Must(PublishFilled(client, device, 1));
  // Writers that meet are told so, and come again; of the reader's sets each is
  // whole and none is older than the one before.
  std::vector<Child> writers;
  for (int i = 0; i < 3; ++i) {
    writers.push_back(
        Child::Start("weights-publish-many", {keeper_address(), "5"}));
  }
  std::uint64_t last = 0;
  while (last < 16) {
    const KeptTensorSet kept = Must(Attach(client));
    const std::uint64_t generation = kept.set.manifest().generation;
    EXPECT_GE(generation, last);
    EXPECT_EQ(Must(kept.set.Verify()), 16u);
    last = generation;
  }
  for (Child& writer : writers) EXPECT_EQ(writer.Wait(), 0);
  EXPECT_EQ(last, 16u);
  EXPECT_EQ(server->names(), 1u);
}

// Publishes so many times: ADDRESS, TIMES.
int PublishMany(const Args& args) {
  const Here here;
  KeeperClient keeper =
      Must(KeeperClient::Connect({.address = args[0]}, Late()));
  int times = 0;
  platform::Check(absl::SimpleAtoi(args[1], &times), "how often");
  while (times > 0) {
    const absl::StatusOr<std::uint64_t> generation =
        PublishFilled(keeper, here.device, 9);
    if (generation.ok()) --times;
    if (!generation.ok() && !absl::IsAborted(generation.status())) {
      Must(generation.status());
    }
  }
  return 0;
}
const bool kPublishMany = RegisterChild("weights-publish-many", &PublishMany);

TEST_F(KeptSetTest, WhatIsNoSetIsNeitherOpenedNorReplaced) {
  const std::unique_ptr<keeper::Server> server = Start();
  KeeperClient client = Client();
  const Allocation other = MakePattern(kGranule, 1);
  Must(client.Put(kName, other.shareable(), Late()));
  for (const bool sealed : {false, true}) {
    if (sealed) Must(client.Seal(kName, Late()));
    const absl::Status none = Attach(client).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(none)) << none;
    EXPECT_THAT(Text(none), HasSubstr(kName));
    EXPECT_TRUE(
        absl::IsFailedPrecondition(PublishFilled(client, device, 2).status()));
  }
  const ImportedAllocation kept =
      Must(client.Attach(kName, driver(), {}, Late()));
  ExpectPattern(kept.address(), kGranule, 1);
}

// A set's generation is its maker's word.
TEST_F(KeptSetTest, OfTheLastGenerationIsNotReplaced) {
  const std::unique_ptr<keeper::Server> server = Start();
  KeeperClient client = Client();
  {
    const TensorLayout layout = LayoutOf();
    const Allocation memory = Make(layout.size());
    TensorSetWriter writer = Must(TensorSetWriter::Begin(
        driver(), memory.address(), memory.requested_size(), layout));
    Must(
        writer.Seal({.generation = std::numeric_limits<std::uint64_t>::max()}));
    Must(client.Replace(kName, memory.shareable(), std::nullopt, Late()));
  }
  const absl::Status refused = PublishFilled(client, device, 1).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(Text(refused),
              AllOf(HasSubstr(kName), HasSubstr("drop it first")));
  Must(client.Drop(kName, Late()));
  EXPECT_EQ(Must(PublishFilled(client, device, 1)), 1u);
}

TEST_F(KeptSetTest, OfAnotherModelIsRefused) {
  const std::unique_ptr<keeper::Server> server = Start();
  KeeperClient client = Client();
  Must(PublishFilled(client, device, 1));
  Must(AttachTensorSet(client, kName, driver(), {.fingerprint = "a"}, Late()));
  const absl::Status other =
      AttachTensorSet(client, kName, driver(), {.fingerprint = "b"}, Late())
          .status();
  EXPECT_TRUE(absl::IsFailedPrecondition(other)) << other;
  EXPECT_THAT(Text(other), AllOf(HasSubstr("\"a\""), HasSubstr("\"b\"")));
}

TEST_F(KeptSetTest, MemoryWhoseEndReadersWouldNotFindIsRefused) {
  const std::unique_ptr<keeper::Server> server = Start();
  KeeperClient client = Client();
  const TensorLayout layout = LayoutOf();
  const Allocation memory = Make(kGranule);
  TensorSetWriter writer = Must(TensorSetWriter::Begin(
      driver(), memory.address(), layout.size(), layout));
  const absl::Status refused =
      PublishTensorSet(client, kName, memory.shareable(), writer, Late())
          .status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_FALSE(writer.is_sealed());
  EXPECT_EQ(server->names(), 0u);
}

// Readers would have what lies there, or nothing.
TEST_F(KeptSetTest, MemoryThatTheWriterDoesNotWriteToIsRefused) {
  const std::unique_ptr<keeper::Server> server = Start();
  KeeperClient client = Client();
  const TensorLayout layout = LayoutOf();
  // Of which all chunks are compared, and adopted: the same memory by another id.
  const auto make = [&] {
    return Must(Allocation::Create(
        device, {.size = 2 * kGranule, .max_chunk_size = kGranule}));
  };
  const Allocation old = make();
  TensorSetWriter writer_of_old = Must(TensorSetWriter::Begin(
      driver(), old.address(), old.requested_size(), layout));
  Must(FillSet(writer_of_old, 1));
  Must(PublishTensorSet(client, kName, old.shareable(), writer_of_old, Late()));

  const Allocation memory = make();
  TensorSetWriter writer = Must(TensorSetWriter::Begin(
      driver(), memory.address(), memory.requested_size(), layout));
  Must(FillSet(writer, 2));
  const Allocation empty = make();
  for (const Allocation* const other : {&old, &empty}) {
    const absl::Status refused =
        PublishTensorSet(client, kName, other->shareable(), writer, Late())
            .status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    EXPECT_THAT(Text(refused), HasSubstr("Give the one that it was made with"));
    EXPECT_FALSE(writer.is_sealed());
    EXPECT_EQ(Must(Attach(client)).set.manifest().generation, 1u);
  }
  const AdoptedMemory same = Must(AdoptedMemory::Adopt(
      driver(), memory.address(), memory.requested_size()));
  EXPECT_EQ(
      Must(PublishTensorSet(client, kName, same.shareable(), writer, Late())),
      2u);
  ExpectFilled(Must(Attach(client)).set, 2);
}

TEST_F(KeptSetTest, MemoryThatTheWriterBeginsWithinIsRefused) {
  const std::unique_ptr<keeper::Server> server = Start();
  KeeperClient client = Client();
  const TensorLayout layout = LayoutOf();
  const Allocation memory =
      Must(Allocation::Create(device, {.size = kGranule / 2}));
  ASSERT_GE(memory.size(), kGranule);
  // Both have as many bytes.
  TensorSetWriter writer = Must(TensorSetWriter::Begin(
      driver(), memory.address() + kGranule / 4, kGranule / 2, layout));
  const absl::Status refused =
      PublishTensorSet(client, kName, memory.shareable(), writer, Late())
          .status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(Text(refused), HasSubstr("not the beginning"));
  EXPECT_FALSE(writer.is_sealed());
  EXPECT_EQ(server->names(), 0u);
}

TEST_F(KeptSetTest, AFullKeeperKeepsTheOldOne) {
  const std::unique_ptr<keeper::Server> server =
      Start({.limits = {.bytes = kGranule}});
  KeeperClient client = Client();
  Must(PublishFilled(client, device, 1));
  const absl::Status full = PublishFilled(client, device, 2).status();
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  ExpectFilled(Must(Attach(client)).set, 1);
}

// With the checksums of what it is then, or with none.
TEST_F(KeptSetTest, WhatWasRefusedIsWrittenToAndPublishedAnew) {
  const std::unique_ptr<keeper::Server> server =
      Start({.limits = {.bytes = kGranule}});
  KeeperClient client = Client();
  for (const bool again : {false, true}) {
    Must(PublishFilled(client, device, 1));
    const TensorLayout layout = LayoutOf();
    const Allocation memory =
        Must(Allocation::Create(device, {.size = layout.size()}));
    TensorSetWriter writer = Must(TensorSetWriter::Begin(
        driver(), memory.address(), memory.requested_size(), layout));
    const auto fill = [&](std::uint64_t seed) {
      for (std::size_t i = 0; i < 16; ++i) {
        WritePattern(writer.address(i), 1000 + i, 100 * seed + i);
      }
    };
    const auto publish = [&] {
      return PublishTensorSet(client, kName, memory.shareable(), writer,
                              Late());
    };
    fill(2);
    Must(writer.TakeChecksums());
    const absl::Status full = publish().status();
    EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
    EXPECT_FALSE(writer.is_sealed());
    Must(client.Drop(kName, Late()));
    fill(3);
    if (again) Must(writer.TakeChecksums());
    EXPECT_EQ(Must(publish()), 1u);
    EXPECT_TRUE(writer.is_sealed());
    EXPECT_TRUE(absl::IsFailedPrecondition(publish().status()));
    EXPECT_TRUE(writer.is_sealed());  // Others have it.
    const KeptTensorSet kept = Must(Attach(client));
    ExpectFilled(kept.set, 3);
    EXPECT_EQ(Must(kept.set.Verify()), again ? 16u : 0u);
    Must(client.Drop(kName, Late()));
  }
}

// Checksums that were taken for a call that failed before it sealed the set.
TEST_F(KeptSetTest, WhatFailedBeforeItWasSealedHasNoOldChecksums) {
  const std::unique_ptr<keeper::Server> server = Start();
  KeeperClient client = Client();
  const TensorLayout layout = LayoutOf();
  const Allocation memory =
      Must(Allocation::Create(device, {.size = layout.size()}));
  const Allocation other = Make(kGranule);
  TensorSetWriter writer = Must(TensorSetWriter::Begin(
      driver(), memory.address(), memory.requested_size(), layout));
  WritePattern(writer.address(2), 1002, 5);
  Must(writer.TakeChecksums());
  EXPECT_TRUE(absl::IsFailedPrecondition(
      PublishTensorSet(client, kName, other.shareable(), writer, Late())
          .status()));
  WritePattern(writer.address(2), 1002, 6);
  Must(PublishTensorSet(client, kName, memory.shareable(), writer, Late()));
  EXPECT_EQ(Must(Must(Attach(client)).set.Verify()), 0u);
}

}  // namespace
}  // namespace vmm::testing
