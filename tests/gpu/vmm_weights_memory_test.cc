// A thread that reads files and is refused memory ends the read, and not the
// program.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <new>
#include <string>
#include <vector>

#include "tests/gpu/vmm_driver_test.h"
#include "tests/support/private_directory.h"
#include "vmm/weights/internal/staging.h"
#include "vmm/weights/tensor_set.h"

namespace {
// Of so many bytes and more at once.
std::atomic<std::size_t> refused = std::numeric_limits<std::size_t>::max();
std::atomic<std::size_t> refusals = 0;

void* MemoryOf(std::size_t size) {
  if (size < refused) return std::malloc(size == 0 ? 1 : size);
  ++refusals;
  return nullptr;
}
}  // namespace

void* operator new(std::size_t size) {
  if (void* const memory = MemoryOf(size)) return memory;
  throw std::bad_alloc();
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return MemoryOf(size);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace vmm::testing {
namespace {

class WeightsMemoryTest : public DriverTest {};

TEST_F(WeightsMemoryTest, AThreadThatReadsAndIsRefusedSomeSaysSo) {
  constexpr std::uint64_t kRows = 16;
  constexpr std::uint64_t kRowBytes = 64;
  const PrivateDirectory directory;
  const std::string path = directory.path() + "/weights";
  std::ofstream(path, std::ios::binary) << std::string(kRows * kRowBytes, 'a');
  // A half of each row: such short parts come by way of a piece, which each thread
  // has of its own.
  TensorLayout layout{TensorSetNotes{}};
  std::vector<TensorSetWriter::FileRead> reads;
  for (const char* name : {"first", "second"}) {
    const std::size_t place =
        Must(layout.Add(name, DType::kUInt8,
                        {static_cast<std::int64_t>(kRows * kRowBytes / 2)}));
    reads.push_back(
        {place, 0, {place * kRowBytes / 2, kRowBytes / 2, kRowBytes}});
  }
  // Only the CPU may use it: a device's would be written by way of pinned memory.
  const Allocation memory = Must(Allocation::Create(
      device, {.size = layout.size(),
               .host_numa_node = 0,
               .also = {{Location::HostNuma(0), Access::kReadWrite}}}));
  TensorSetWriter writer = Must(TensorSetWriter::Begin(
      driver(), memory.address(), memory.requested_size(), layout));
  for (const std::size_t threads : {1u, 2u}) {
    refused = static_cast<std::size_t>(weights::kPiece);
    const absl::Status lacking =
        writer.ReadFiles({path}, reads, {.threads = threads});
    refused = std::numeric_limits<std::size_t>::max();
    EXPECT_TRUE(absl::IsResourceExhausted(lacking)) << lacking;
    EXPECT_THAT(std::string(lacking.message()),
                ::testing::HasSubstr(
                    "a thread that reads files of tensors has no memory"));
  }
  EXPECT_GE(refusals, 2u) << "a thread asked for no piece";
  // Once there is some, the same writer reads.
  Must(writer.ReadFiles({path}, reads, {.threads = 2}));
  Must(writer.Seal({}));
  const TensorSet set = Must(
      TensorSet::Open(driver(), memory.address(), memory.requested_size()));
  EXPECT_EQ(Must(set.Verify()), 2u);
}

}  // namespace
}  // namespace vmm::testing
