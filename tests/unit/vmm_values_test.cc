#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <limits>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "platform/os/os_handle.h"
#include "vmm/memory/device.h"
#include "vmm/memory/handle_kind.h"
#include "vmm/memory/physical_memory.h"
#include "vmm/memory/shareable.h"
#include "vmm/pool/pool_ticket.h"
#include "vmm/share/ticket.h"
#include "vmm/sync/fence_pool.h"

namespace vmm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::uint64_t kMiB = 1 << 20;
constexpr std::uint64_t kGranularity = 2 * kMiB;
constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();

TEST(HandleKind, HasTheDriversOwnNumbers) {
  EXPECT_EQ(static_cast<int>(HandleKind::kPosixFd),
            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  EXPECT_EQ(static_cast<int>(HandleKind::kWin32), CU_MEM_HANDLE_TYPE_WIN32);
  EXPECT_EQ(static_cast<int>(HandleKind::kFabric), CU_MEM_HANDLE_TYPE_FABRIC);
}

TEST(HandleKind, IsNamedForPeople) {
  EXPECT_EQ(NameOf(HandleKind::kPosixFd), "POSIX fd");
  EXPECT_EQ(NameOf(HandleKind::kWin32), "NT handle");
  EXPECT_EQ(NameOf(HandleKind::kFabric), "fabric handle");
  EXPECT_EQ(NameOf(static_cast<HandleKind>(4)), "unknown handle kind");
}

TEST(HandleKindSet, HoldsWhatWasAddedAndNotRemoved) {
  HandleKindSet set;
  EXPECT_TRUE(set.empty());
  EXPECT_EQ(set.ToString(), "none");
  set.Add(HandleKind::kFabric);
  set.Add(HandleKind::kPosixFd);
  set.Add(HandleKind::kPosixFd);
  EXPECT_TRUE(set.Has(HandleKind::kFabric));
  EXPECT_FALSE(set.Has(HandleKind::kWin32));
  EXPECT_EQ(set.bits(), 9u);
  EXPECT_EQ(set.ToString(), "POSIX fd + fabric handle");
  EXPECT_EQ(set, (HandleKindSet{HandleKind::kPosixFd, HandleKind::kFabric}));
  set.Remove(HandleKind::kFabric);
  set.Remove(HandleKind::kFabric);
  EXPECT_EQ(set, HandleKindSet{HandleKind::kPosixFd});
  set.Remove(HandleKind::kPosixFd);
  EXPECT_TRUE(set.empty());
}

TEST(HandleKindSet, DropsBitsOfADriverThatItDoesNotKnow) {
  EXPECT_EQ(HandleKindSet::FromCuda(~0u).bits(), 11u);
  EXPECT_EQ(HandleKindSet::FromCuda(4 | 16 | 64 | 128).bits(), 0u);
  EXPECT_EQ(HandleKindSet::FromBits(~0u).bits(), 11u | 64 | 128);
  EXPECT_EQ(HandleKindSet::FromBits(~0u).cuda_bits(),
            static_cast<CUmemAllocationHandleType>(11));
  EXPECT_EQ(HandleKindSet::FromBits(9).cuda_bits(),
            static_cast<CUmemAllocationHandleType>(9));
}

TEST(SharePolicy, KeepsTheOrderThatWasGiven) {
  EXPECT_THAT(SharePolicy::Require(HandleKind::kFabric).kinds(),
              ElementsAre(HandleKind::kFabric));
  EXPECT_THAT(
      SharePolicy::AnyOf({HandleKind::kFabric, HandleKind::kPosixFd}).kinds(),
      ElementsAre(HandleKind::kFabric, HandleKind::kPosixFd));
  EXPECT_THAT(SharePolicy::Private().kinds(), IsEmpty());
}

TEST(SharePolicy, NativeIsTheKindOfThisSystemsHandles) {
  EXPECT_THAT(
      SharePolicy::Native().kinds(),
      ElementsAre(platform::kNativeHandleIsPosixFd ? HandleKind::kPosixFd
                                                   : HandleKind::kWin32));
}

TEST(SharePolicy, AndUsersChangesNoKind) {
  const platform::UserId user("S-1-5-32-545");
  const SharePolicy policy = SharePolicy::Native().AndUsers({user});
  EXPECT_EQ(policy.kinds(), SharePolicy::Native().kinds());
  EXPECT_THAT(policy.users(), ElementsAre(user));
  EXPECT_THAT(SharePolicy::Native().users(), IsEmpty());
}

TEST(LayOut, RefusesSizeZero) {
  const auto layout = LayOut(0, 0, kGranularity);
  EXPECT_EQ(layout.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(layout.status().message()),
              HasSubstr("size is 0 bytes; expected at least 1 byte"));
}

TEST(LayOut, RoundsUpToTheGranularity) {
  for (const auto& [size, rounded] :
       std::vector<std::pair<std::uint64_t, std::uint64_t>>{
           {1, kGranularity},
           {kGranularity - 1, kGranularity},
           {kGranularity, kGranularity},
           {kGranularity + 1, 2 * kGranularity},
           {7 * kGranularity, 7 * kGranularity}}) {
    const auto layout = LayOut(size, 0, kGranularity);
    ASSERT_TRUE(layout.ok()) << layout.status();
    EXPECT_EQ(*layout, (ChunkLayout{rounded, rounded})) << size;
    EXPECT_EQ(layout->count(), 1u);
    EXPECT_EQ(layout->SizeOf(0), rounded);
  }
}

TEST(LayOut, CutsIntoChunksOfAtMostTheMaximum) {
  struct Case {
    std::uint64_t size, maximum, chunk;
    std::size_t count;
    std::uint64_t last;
  };
  for (const Case& c : {Case{10 * kMiB, 4 * kMiB, 4 * kMiB, 3, 2 * kMiB},
                        Case{8 * kMiB, 4 * kMiB, 4 * kMiB, 2, 4 * kMiB},
                        // The maximum is rounded down, so that it is kept.
                        Case{8 * kMiB, 5 * kMiB, 4 * kMiB, 2, 4 * kMiB},
                        Case{8 * kMiB, 8 * kMiB, 8 * kMiB, 1, 8 * kMiB},
                        Case{8 * kMiB, kMax, 8 * kMiB, 1, 8 * kMiB},
                        Case{1, 2 * kMiB, 2 * kMiB, 1, 2 * kMiB},
                        Case{9 * kMiB, 2 * kMiB, 2 * kMiB, 5, 2 * kMiB}}) {
    const auto layout = LayOut(c.size, c.maximum, kGranularity);
    ASSERT_TRUE(layout.ok()) << layout.status();
    EXPECT_EQ(layout->chunk_size, c.chunk) << c.size << " " << c.maximum;
    EXPECT_EQ(layout->count(), c.count) << c.size << " " << c.maximum;
    EXPECT_EQ(layout->SizeOf(c.count - 1), c.last);
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < layout->count(); ++i) {
      EXPECT_LE(layout->SizeOf(i), c.maximum);
      EXPECT_EQ(layout->SizeOf(i) % kGranularity, 0u);
      sum += layout->SizeOf(i);
    }
    EXPECT_EQ(sum, layout->size);
  }
}

TEST(LayOut, RefusesAMaximumUnderTheGranularity) {
  for (std::uint64_t maximum : {std::uint64_t{1}, kGranularity - 1}) {
    const auto layout = LayOut(kMiB, maximum, kGranularity);
    EXPECT_EQ(layout.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(layout.status().message()),
                HasSubstr("granularity of 2097152 bytes"));
  }
}

TEST(LayOut, RefusesASizeThatRoundsUpPast64Bits) {
  for (std::uint64_t size : {kMax, kMax - 1, kMax - kGranularity + 1}) {
    const auto layout = LayOut(size, 0, kGranularity);
    EXPECT_EQ(layout.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(layout.status().message()),
                HasSubstr("overflows 64 bits"));
  }
  const auto largest = LayOut(kMax - kGranularity, 0, kGranularity);
  ASSERT_TRUE(largest.ok()) << largest.status();
  EXPECT_EQ(largest->size, kMax - kGranularity + 1);
  EXPECT_EQ(largest->count(), 1u);
}

TEST(LayOut, CountsTheChunksOfTheLargestSizes) {
  const auto layout = LayOut(kMax - kGranularity, kMax, kGranularity);
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(layout->count(), 1u);
  const auto two = LayOut(kMax - kGranularity, kMax / 2 + 1, kGranularity);
  ASSERT_TRUE(two.ok()) << two.status();
  EXPECT_EQ(two->count(), 2u);
  EXPECT_EQ(two->SizeOf(0) + two->SizeOf(1), two->size);
}

TEST(ChunkLayout, CountsWithoutOverflow) {
  EXPECT_EQ((ChunkLayout{kMax, kMax}).count(), 1u);
  EXPECT_EQ((ChunkLayout{kMax, kMax}).SizeOf(0), kMax);
  EXPECT_EQ((ChunkLayout{kMax, kMax - 1}).count(), 2u);
  EXPECT_EQ((ChunkLayout{kMax, kMax - 1}).SizeOf(1), 1u);
}

TEST(ChunkLayout, OfNothingHasNoChunk) { EXPECT_EQ(ChunkLayout{}.count(), 0u); }

TEST(MemoryId, IsNeverDrawnTwice) {
  std::mutex mutex;
  std::set<MemoryId> drawn;
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        const absl::StatusOr<MemoryId> id = NewMemoryId();
        std::lock_guard<std::mutex> lock(mutex);
        if (!id.ok() || !drawn.insert(*id).second) ++failures;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
  EXPECT_EQ(drawn.size(), 2000u);
  std::set<OwnerId> owners;
  for (const MemoryId& id : drawn) {
    owners.insert(id.owner);
    EXPECT_EQ(id.generation, 1u);
    EXPECT_NE(id.number, 0u);
  }
  EXPECT_EQ(owners.size(), 1u) << "one process is one owner";
  EXPECT_NE(owners.begin()->bytes, OwnerId().bytes);
}

TEST(MemoryId, TellsGenerationsApart) {
  MemoryId old{{}, 5, 1};
  MemoryId renewed = old;
  renewed.generation = 2;
  EXPECT_NE(old, renewed);
  EXPECT_LT(old, renewed);
  old.owner.bytes[0] = 0xab;
  EXPECT_EQ(old.ToString(), "ab000000000000000000000000000000/5.1");
}

TEST(Tickets, AreEqualOnlyInAllFields) {
  const PoolTicket block{{}, 1, 2, 3, 4, 5};
  EXPECT_EQ(block, PoolTicket(block));
  for (const PoolTicket& other :
       {PoolTicket{{{1}}, 1, 2, 3, 4, 5}, PoolTicket{{}, 9, 2, 3, 4, 5},
        PoolTicket{{}, 1, 9, 3, 4, 5}, PoolTicket{{}, 1, 2, 9, 4, 5},
        PoolTicket{{}, 1, 2, 3, 9, 5}, PoolTicket{{}, 1, 2, 3, 4, 9}}) {
    EXPECT_FALSE(other == block) << other.Describe();
  }
  const FenceTicket fence{{}, 1, 2, 3, 4};
  EXPECT_EQ(fence, FenceTicket(fence));
  for (const FenceTicket& other :
       {FenceTicket{{{1}}, 1, 2, 3, 4}, FenceTicket{{}, 9, 2, 3, 4},
        FenceTicket{{}, 1, 9, 3, 4}, FenceTicket{{}, 1, 2, 9, 4},
        FenceTicket{{}, 1, 2, 3, 9}}) {
    EXPECT_FALSE(other == fence) << other.Describe();
  }
  const Ticket memory;
  EXPECT_EQ(memory, Ticket());
  using Change = void (*)(Ticket&);
  const std::vector<Change> changes = {
      [](Ticket& t) { t.kind = HandleKind::kFabric; },
      [](Ticket& t) { t.host_memory_driver = true; },
      [](Ticket& t) { t.rdma_capable = true; },
      [](Ticket& t) { t.host_numa_node = 0; },
      [](Ticket& t) { t.layout.size = 9; },
      [](Ticket& t) { t.layout.chunk_size = 9; },
      [](Ticket& t) { t.requested_size = 9; },
      [](Ticket& t) { t.id.owner.bytes[15] = 9; },
      [](Ticket& t) { t.id.number = 9; },
      [](Ticket& t) { t.id.generation = 9; },
      [](Ticket& t) { t.device.bytes[0] = 9; },
      [](Ticket& t) { t.boot_id[15] = 9; },
      [](Ticket& t) { t.host_name = "x"; }};
  for (const Change change : changes) {
    Ticket other;
    change(other);
    EXPECT_FALSE(other == memory) << other.Describe();
  }
}

TEST(DeviceUuid, PrintsAsNvidiaSmiDoes) {
  DeviceUuid uuid;
  uuid.bytes = {0xf0, 0x61, 0x3f, 0xf9, 0xb9, 0x33, 0xc3, 0x8b,
                0x3a, 0x87, 0x83, 0xfb, 0xe5, 0x9c, 0xa8, 0xa9};
  EXPECT_EQ(uuid.ToString(), "GPU-f0613ff9-b933-c38b-3a87-83fbe59ca8a9");
  EXPECT_EQ(DeviceUuid().ToString(),
            "GPU-00000000-0000-0000-0000-000000000000");
}

}  // namespace
}  // namespace vmm
