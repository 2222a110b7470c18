// Buffers at the same place of every rank's symmetric memory; ranks are threads
// of this process.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/job/local_job.h"
#include "tests/support/must.h"
#include "tests/support/test_driver.h"
#include "vmm/job/internal/heap_record.h"
#include "vmm/job/symmetric.h"
#include "vmm/memory/device.h"

namespace vmm::testing {
namespace {

using job::SymmetricHeap;
using job::SymmetricMemory;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::uint64_t kMiB = 1 << 20;

TEST(SymmetricHeap, GivesEveryRankTheSamePlaces) {
  LocalJob job(3);
  std::vector<std::vector<std::uint64_t>> offsets(3);
  job.RunAll([&](int rank, fabric::Exchange& exchange) {
    const Device device = Must(Device::ByOrdinal(TestDriver(), 0));
    const PrimaryContext context = Must(PrimaryContext::Retain(device));
    const CurrentContext current = Must(context.MakeCurrent());
    const SymmetricMemory memory = Must(
        SymmetricMemory::Create(device, exchange, {.size = 8 * kMiB}, Late()));
    SymmetricHeap heap(memory.size());
    std::mt19937 random(7);  // The same program on each.
    std::vector<std::uint64_t> live;
    for (int i = 0; i < 2000; ++i) {
      if (live.size() > 20 || (!live.empty() && random() % 3 == 0)) {
        const std::size_t at = random() % live.size();
        Must(heap.Free(live[at]));
        live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
        continue;
      }
      live.push_back(Must(heap.Allocate(1 + random() % (kMiB / 4),
                                        std::uint64_t{256} << random() % 4)));
    }
    Must(heap.CheckAgreed(exchange, Late()));
    offsets[static_cast<std::size_t>(rank)] = live;
    // Each writes to the next one's buffers what only it would.
    const int next = (rank + 1) % 3;
    for (const std::uint64_t offset : live) {
      const std::uint64_t word = offset + static_cast<unsigned>(rank);
      EXPECT_EQ(
          TestDriver()->cuMemcpyHtoD(memory.address(next) + offset, &word, 8),
          CUDA_SUCCESS);
    }
    EXPECT_EQ(TestDriver()->cuCtxSynchronize(), CUDA_SUCCESS);
    Must(Gather(exchange, "written", {}, Late()).status);
    for (const std::uint64_t offset : live) {
      std::uint64_t word = 0;
      EXPECT_EQ(
          TestDriver()->cuMemcpyDtoH(&word, memory.address(rank) + offset, 8),
          CUDA_SUCCESS);
      EXPECT_EQ(word, offset + static_cast<unsigned>((rank + 2) % 3));
    }
    Must(Gather(exchange, "read", {}, Late()).status);
  });
  EXPECT_FALSE(offsets[0].empty());
  EXPECT_EQ(offsets[0], offsets[1]);
  EXPECT_EQ(offsets[0], offsets[2]);
}

TEST(SymmetricHeap, BuffersDoNotOverlapAndLieAsAsked) {
  SymmetricHeap heap(64 * kMiB);
  std::map<std::uint64_t, std::uint64_t> live;  // Sizes by offset.
  std::mt19937 random(1);
  for (int i = 0; i < 5000; ++i) {
    if (live.size() == 30 || (!live.empty() && random() % 2 == 0)) {
      const auto at = std::next(
          live.begin(), static_cast<std::ptrdiff_t>(random() % live.size()));
      Must(heap.Free(at->first));
      live.erase(at);
      continue;
    }
    const std::uint64_t size = 1 + random() % kMiB;
    const std::uint64_t alignment = std::uint64_t{1} << random() % 22;
    const std::uint64_t offset = Must(heap.Allocate(size, alignment));
    EXPECT_EQ(offset % alignment, 0u);
    EXPECT_LE(offset + size, heap.size());
    const auto above = live.lower_bound(offset);
    if (above != live.end()) {
      EXPECT_LE(offset + size, above->first);
    }
    if (above != live.begin()) {
      const auto below = std::prev(above);
      EXPECT_LE(below->first + below->second, offset);
    }
    live[offset] = size;
  }
  EXPECT_EQ(heap.live(), live.size());
  for (const auto& [offset, size] : live) Must(heap.Free(offset));
  EXPECT_EQ(heap.free_bytes(), heap.size());
}

TEST(SymmetricHeap, RefusesWhatCannotBe) {
  SymmetricHeap heap(1000);
  EXPECT_EQ(heap.size(), 1024u);  // In whole granules.
  EXPECT_TRUE(absl::IsInvalidArgument(heap.Allocate(0).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(heap.Allocate(8, 0).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(heap.Allocate(8, 48).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(
      heap.Allocate(8, 2 * SymmetricHeap::kMaxAlignment).status()));
  const absl::Status full = heap.Allocate(UINT64_MAX).status();
  EXPECT_TRUE(absl::IsResourceExhausted(full));
  EXPECT_THAT(std::string(full.message()),
              AllOf(HasSubstr("18446744073709551615 bytes"),
                    HasSubstr("of 1024 bytes 1024 are free"),
                    HasSubstr("the memory ends at 1000. Make"),
                    HasSubstr("SymmetricMemory larger")));
  EXPECT_TRUE(absl::IsResourceExhausted(heap.Allocate(1001).status()));
  EXPECT_TRUE(absl::IsResourceExhausted(heap.Allocate(1024).status()));
  EXPECT_EQ(heap.free_bytes(), 1024u);
  const std::uint64_t all = Must(heap.Allocate(1000));
  EXPECT_TRUE(absl::IsResourceExhausted(heap.Allocate(1).status()));
  EXPECT_TRUE(absl::IsNotFound(heap.Free(all + 256)));
  Must(heap.Free(all));
  EXPECT_TRUE(absl::IsNotFound(heap.Free(all)));
}

TEST(SymmetricHeap, NoBufferEndsBeyondTheMemory) {
  SymmetricHeap heap(1000);
  EXPECT_EQ(Must(heap.Allocate(512)), 0u);
  EXPECT_TRUE(absl::IsResourceExhausted(heap.Allocate(512).status()));
  EXPECT_EQ(Must(heap.Allocate(488)), 512u);
  Must(heap.Free(512));
  // There are two granules left, and 232 bytes in the last one.
  EXPECT_EQ(Must(heap.Allocate(256)), 512u);
  EXPECT_TRUE(absl::IsResourceExhausted(heap.Allocate(256).status()));
  EXPECT_EQ(heap.free_bytes(), 256u);
  // A range before it is taken where there is one, and the last where it fits.
  Must(heap.Free(0));
  EXPECT_EQ(Must(heap.Allocate(256)), 0u);
  EXPECT_EQ(Must(heap.Allocate(250)), 256u);
  Must(heap.Free(0));
  EXPECT_EQ(Must(heap.Allocate(256)), 0u);
  EXPECT_EQ(Must(heap.Allocate(232)), 768u);
  EXPECT_EQ(heap.free_bytes(), 0u);
}

TEST(SymmetricHeap, ItsBuffersMoveWithIt) {
  SymmetricHeap first(kMiB);
  const std::uint64_t offset = Must(first.Allocate(256));
  SymmetricHeap second(std::move(first));
  SymmetricHeap third(1024);
  third = std::move(second);
  EXPECT_EQ(third.size(), kMiB);
  EXPECT_EQ(third.live(), 1u);
  Must(third.Free(offset));
  EXPECT_EQ(third.free_bytes(), kMiB);
}

// What each rank was told, where `work` is what it does with its heap.
std::vector<absl::Status> CheckAfter(
    LocalJob& job, const std::function<void(int, SymmetricHeap&)>& work) {
  std::vector<absl::Status> told(static_cast<std::size_t>(job.ranks()));
  job.RunAll([&](int rank, fabric::Exchange& exchange) {
    SymmetricHeap heap(kMiB);
    work(rank, heap);
    told[static_cast<std::size_t>(rank)] = heap.CheckAgreed(exchange, Late());
  });
  return told;
}

TEST(SymmetricHeap, ACallThatOneRankMadeOtherwiseIsToldToAll) {
  LocalJob job(4);
  for (const absl::Status& status :
       CheckAfter(job, [](int rank, SymmetricHeap&heap) {
         Must(heap.Allocate(rank == 2 ? 4096 : 8192));
       })) {
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("rank 0 made 1 calls and has 1040384 bytes"),
                      HasSubstr("rank 2 made 1 calls and has 1044480 bytes"),
                      Not(HasSubstr("rank 1")), Not(HasSubstr("rank 3"))));
  }
}

// Of the same size and as many: only the order tells them apart.
TEST(SymmetricHeap, AnotherOrderIsToldToAll) {
  LocalJob job(2);
  for (const absl::Status& status :
       CheckAfter(job, [](int rank, SymmetricHeap&heap) {
         Must(heap.Allocate(rank == 0 ? 256 : 512));
         Must(heap.Allocate(rank == 0 ? 512 : 256));
       })) {
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  }
}

// A call that fails fails on all, or they do not agree.
TEST(SymmetricHeap, ACallThatFailsCounts) {
  LocalJob job(2);
  for (const absl::Status& status :
       CheckAfter(job, [](int rank, SymmetricHeap&heap) {
         if (rank == 1) {
           EXPECT_FALSE(heap.Free(0).ok());
         }
       })) {
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  }
}

TEST(SymmetricHeap, AMessageNamesNoMoreThanAFewOfManyRanks) {
  LocalJob job(24);
  for (const absl::Status& status :
       CheckAfter(job, [](int rank, SymmetricHeap&heap) {
         if (rank > 0) Must(heap.Allocate(256));
       })) {
    EXPECT_THAT(std::string(status.message()), HasSubstr("so do 15 more"));
  }
}

TEST(SymmetricHeap, ARankThatSaysSomethingElseIsNamed) {
  LocalJob job(2);
  job.tamper = [](int rank, const std::string&, fabric::Bytes& value) {
    if (rank == 1) value.back() ^= 1;
  };
  for (const absl::Status& status :
       CheckAfter(job, [](int, SymmetricHeap&) {})) {
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1"));
  }
}

TEST(SymmetricHeap, ARankThatDoesNotComeIsNamed) {
  LocalJob job(2);
  job.Run({0}, [](int, fabric::Exchange& exchange) {
    const SymmetricHeap heap(kMiB);
    const absl::Status status =
        heap.CheckAgreed(exchange, Deadline::In(absl::Milliseconds(200)));
    EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1"));
  });
}

TEST(HeapRecord, IsAnotherWhenAnythingDiffers) {
  const job::HeapRecord record{12, 0xdeadbeef, 1 << 30};
  EXPECT_EQ(record, (job::HeapRecord{12, 0xdeadbeef, 1 << 30}));
  EXPECT_NE(record, (job::HeapRecord{13, 0xdeadbeef, 1 << 30}));
  EXPECT_NE(record, (job::HeapRecord{12, 0xdeadbeee, 1 << 30}));
  EXPECT_NE(record, (job::HeapRecord{12, 0xdeadbeef, 1 << 29}));
}

TEST(HeapRecord, IsReadAsItWasWritten) {
  const job::HeapRecord record{12, 0xdeadbeef, 1 << 30};
  const fabric::Bytes bytes = job::EncodeHeapRecord(record);
  EXPECT_EQ(Must(job::DecodeHeapRecord(bytes)), record);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(
        job::DecodeHeapRecord(absl::MakeConstSpan(bytes).first(size)).ok());
  }
}

}  // namespace
}  // namespace vmm::testing
