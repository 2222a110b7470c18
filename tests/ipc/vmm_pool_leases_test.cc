// Leases of a pool's blocks: who holds what since when, asked back, waited for.
#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "platform/ipc/shared_memory.h"
#include "platform/os/coarse_clock.h"
#include "platform/os/process.h"
#include "tests/ipc/ask.h"
#include "tests/ipc/pool_ipc_test.h"
#include "vmm/pool/internal/share_layout.h"
#include "vmm/pool/internal/share_protocol.h"

namespace vmm::testing {
namespace {

using ::testing::HasSubstr;

class PoolLeases : public PoolIpcTest {
 protected:
  // An ImportedPool of this process, and the blocks that it holds.
  struct Holder {
    explicit Holder(std::unique_ptr<ImportedPool> imported)
        : pool(std::move(imported)) {
      pool->Watch({.recalled =
                       [this](absl::Span<const RecalledBlock> wanted) {
                         std::lock_guard<std::mutex> lock(mutex);
                         told.insert(told.end(), wanted.begin(), wanted.end());
                         changed.notify_all();
                       },
                   .disconnected =
                       [this](const absl::Status& why) {
                         std::lock_guard<std::mutex> lock(mutex);
                         ended = why;
                         changed.notify_all();
                       }});
    }
    ~Holder() { blocks.clear(); }

    bool AwaitTold(std::size_t count) {
      std::unique_lock<std::mutex> lock(mutex);
      return changed.wait_until(lock, absl::ToChronoTime(Late()),
                                [&] { return told.size() >= count; });
    }
    bool AwaitEnded() {
      std::unique_lock<std::mutex> lock(mutex);
      return changed.wait_until(lock, absl::ToChronoTime(Late()),
                                [&] { return !ended.ok(); });
    }

    std::mutex mutex;
    std::condition_variable changed;
    std::vector<RecalledBlock> told;
    absl::Status ended;
    std::vector<ImportedBlock> blocks;
    std::unique_ptr<ImportedPool> pool;
  };

  std::unique_ptr<Holder> Hold(const Share& publication,
                               const std::vector<CUdeviceptr>& blocks) {
    auto holder = std::make_unique<Holder>(Subscribe(publication));
    for (CUdeviceptr block : blocks) {
      holder->blocks.push_back(
          Must(holder->pool->Import(Export(block), Late())));
    }
    return holder;
  }
  std::vector<CUdeviceptr> TakeBlocks(std::size_t count) {
    std::vector<CUdeviceptr> blocks;
    for (std::size_t i = 0; i < count; ++i) blocks.push_back(Take(1000 + i));
    return blocks;
  }
  static absl::Time Soon() { return absl::Now() + absl::Milliseconds(30); }
};

TEST_F(PoolLeases, NameWhoHoldsWhatSinceWhen) {
  const Share publication = Serve();
  const std::vector<CUdeviceptr> blocks = TakeBlocks(3);
  PoolPeer peer = StartPeer();
  ASSERT_EQ(peer.Subscribe(publication.ticket()), "OK");
  EXPECT_TRUE(pool_->Leases().empty());
  // Not since the subscription: that is longer ago than what is allowed below.
  const std::uint64_t subscribed = platform::CoarseNow();
  ExpectSoon([&] { return platform::CoarseNow() >= subscribed + 2000; });
  const absl::Time before = absl::Now();
  ASSERT_EQ(peer.Import(
                std::vector<PoolTicket>{Export(blocks[0]), Export(blocks[2])}),
            "OK");
  const absl::Time after = absl::Now();
  std::vector<BlockLease> leases = pool_->Leases();
  ASSERT_EQ(leases.size(), 2u);
  if (leases[0].block != blocks[0]) std::swap(leases[0], leases[1]);
  EXPECT_EQ(leases[0].block, blocks[0]);
  EXPECT_EQ(leases[1].block, blocks[2]);
  EXPECT_EQ(leases[0].lease.size, 1000u);
  EXPECT_EQ(leases[1].lease.size, 1002u);
  for (const BlockLease& one : leases) {
    EXPECT_FALSE(one.freed);
    EXPECT_EQ(one.lease.state, LeaseState::kHeld);
    EXPECT_EQ(one.lease.return_by, std::nullopt);
    EXPECT_EQ(one.lease.holder.user, platform::CurrentUser());
    EXPECT_EQ(one.lease.holder.pid, peer.child().pid());
    // Two ticks of 16 ms: when it was written, and when it is read. And a busy
    // machine lets time pass between the two clocks that it is reckoned from.
    EXPECT_GE(one.lease.since, before - absl::Milliseconds(500));
    EXPECT_LE(one.lease.since, after + absl::Milliseconds(500));
    EXPECT_THAT(one.lease.Describe(),
                HasSubstr(absl::StrCat("process ", peer.child().pid())));
  }
  // A freed block is listed until it is given back, and no longer.
  FreeAll(blocks);
  leases = pool_->Leases();
  ASSERT_EQ(leases.size(), 2u);
  EXPECT_TRUE(leases[0].freed && leases[1].freed);
  EXPECT_EQ(peer.ReleaseAll(), "OK");
  EXPECT_TRUE(pool_->Leases().empty());
  EXPECT_EQ(peer.End(), 0);
  ExpectAllIsFree();
}

TEST_F(PoolLeases, EachHolderOfABlockHasOne) {
  const Share publication = Serve();
  const std::vector<CUdeviceptr> blocks = TakeBlocks(1);
  const auto first = Hold(publication, blocks);
  const auto second = Hold(publication, blocks);
  second->blocks.push_back(
      Must(second->pool->Import(Export(blocks[0]), Late())));
  EXPECT_EQ(pool_->Leases().size(), 2u);
  second->blocks.pop_back();
  EXPECT_EQ(pool_->Leases().size(), 2u);
  second->blocks.clear();
  EXPECT_EQ(pool_->Leases().size(), 1u);
  first->blocks.clear();
  FreeAll(blocks);
}

TEST_F(PoolLeases, ARecallReachesThoseThatHoldTheBlockAndNoOthers) {
  const Share publication = Serve();
  const std::vector<CUdeviceptr> blocks = TakeBlocks(3);
  const auto first = Hold(publication, {blocks[0], blocks[1]});
  const auto second = Hold(publication, {blocks[2]});
  const absl::Time until = absl::Now() + absl::Seconds(40);
  Must(pool_->Recall({blocks[1]}, until));
  ASSERT_TRUE(first->AwaitTold(1));
  EXPECT_EQ(first->told[0].address, first->blocks[1].address());
  EXPECT_EQ(first->told[0].size, 1001u);
  EXPECT_LE(first->told[0].return_by, until + absl::Seconds(5));
  EXPECT_GE(first->told[0].return_by, until - absl::Milliseconds(1));
  ASSERT_EQ(first->pool->Recalled().size(), 1u);
  for (const BlockLease& one : pool_->Leases()) {
    const bool asked = one.block == blocks[1];
    EXPECT_EQ(one.lease.state,
              asked ? LeaseState::kRecalled : LeaseState::kHeld);
    EXPECT_EQ(one.lease.return_by.has_value(), asked);
  }
  // A later one for the other: had it been told before, it would be first.
  Must(pool_->Recall({blocks[2]}, until));
  ASSERT_TRUE(second->AwaitTold(1));
  EXPECT_EQ(second->told.size(), 1u);
  EXPECT_EQ(second->told[0].address, second->blocks[0].address());
  // What is given back is not asked for any more, nor is its slot's next block.
  first->blocks.pop_back();
  EXPECT_TRUE(first->pool->Recalled().empty());
  Free(blocks[1]);
  const CUdeviceptr next = Take(1001);
  first->blocks.push_back(Must(first->pool->Import(Export(next), Late())));
  EXPECT_TRUE(first->pool->Recalled().empty());
  const std::vector<BlockLease> leases = pool_->Leases();
  EXPECT_EQ(std::count_if(leases.begin(), leases.end(),
                          [&](const BlockLease& one) {
                            return one.lease.state == LeaseState::kRecalled;
                          }),
            1);
  first->blocks.clear();
  second->blocks.clear();
  FreeAll({blocks[0], blocks[2], next});
}

TEST_F(PoolLeases, AllAreAskedFreedOnesTooAndAWaitEndsWhenAllAreBack) {
  const Share publication = Serve();
  const std::vector<CUdeviceptr> blocks = TakeBlocks(2500);
  const auto holder = Hold(publication, blocks);
  for (std::size_t i = 0; i < 1000; ++i) Free(blocks[i]);
  pool_->RecallAll(Late());
  ASSERT_TRUE(holder->AwaitTold(2500));
  EXPECT_EQ(holder->pool->Recalled().size(), 2500u);
  EXPECT_TRUE(absl::IsDeadlineExceeded(pool_->WaitUntilAllReturned(Soon())));
  std::thread returns([&] { holder->blocks.clear(); });
  const absl::Status back = pool_->WaitUntilAllReturned(Late());
  returns.join();
  EXPECT_TRUE(back.ok()) << back;
  EXPECT_TRUE(pool_->Leases().empty());
  FreeAll({blocks.begin() + 1000, blocks.end()});
  ExpectWhole();
}

TEST_F(PoolLeases, AWaitPastItsDeadlineNamesWhoHoldsWhat) {
  const Share publication = Serve();
  const std::vector<CUdeviceptr> blocks = TakeBlocks(6);
  PoolPeer peer = StartPeer();
  ASSERT_EQ(peer.Subscribe(publication.ticket()), "OK");
  ASSERT_EQ(peer.Import(Must(pool_->ExportAll(blocks))), "OK");
  Must(pool_->Recall(blocks, absl::Now()));
  const absl::Status late = pool_->WaitUntilReturned(blocks, Soon());
  EXPECT_TRUE(absl::IsDeadlineExceeded(late));
  EXPECT_THAT(std::string(late.message()),
              HasSubstr("6 leases are not returned: block 0x"));
  EXPECT_THAT(std::string(late.message()),
              HasSubstr(absl::StrCat("process ", peer.child().pid())));
  EXPECT_THAT(std::string(late.message()), HasSubstr("late by"));
  EXPECT_THAT(std::string(late.message()), HasSubstr("and 3 more"));
  // It stays where it is: nothing is taken away.
  EXPECT_EQ(pool_->Leases().size(), 6u);
  EXPECT_EQ(peer.End(), 0);
  Must(pool_->WaitUntilReturned(blocks, Late()));
  FreeAll(blocks);
  ExpectAllIsFree();
}

TEST_F(PoolLeases, AWaitIsForItsBlocksAlone) {
  const Share publication = Serve();
  const std::vector<CUdeviceptr> blocks = TakeBlocks(2);
  const CUdeviceptr never_shared = Take(64);
  const auto holder = Hold(publication, blocks);
  Must(pool_->WaitUntilReturned({}, absl::InfinitePast()));
  Must(pool_->WaitUntilReturned({never_shared}, absl::InfinitePast()));
  std::swap(holder->blocks[0], holder->blocks[1]);
  holder->blocks.pop_back();  // That of blocks[0].
  Must(pool_->WaitUntilReturned({blocks[0]}, absl::InfinitePast()));
  EXPECT_FALSE(pool_->WaitUntilReturned({blocks[1]}, Soon()).ok());
  // Freed by another thread meanwhile: it is waited for all the same.
  absl::Status waited;
  std::thread waits(
      [&] { waited = pool_->WaitUntilReturned({blocks[1]}, Late()); });
  Free(blocks[1]);
  holder->blocks.clear();
  waits.join();
  // Whoever came first: it was free already when the wait began, or back.
  EXPECT_TRUE(waited.ok() || absl::IsFailedPrecondition(waited)) << waited;
  Free(blocks[0]);
  Free(never_shared);
}

TEST_F(PoolLeases, BlocksThatAreNoneOrFreeAreErrorsAndNobodyIsAsked) {
  const Share publication = Serve();
  const std::vector<CUdeviceptr> blocks = TakeBlocks(2);
  const auto holder = Hold(publication, {blocks[0]});
  Free(blocks[1]);
  EXPECT_TRUE(absl::IsFailedPrecondition(pool_->Recall(blocks, Late())));
  EXPECT_TRUE(absl::IsInvalidArgument(
      pool_->Recall({blocks[0], blocks[0] + 1}, Late())));
  EXPECT_TRUE(
      absl::IsFailedPrecondition(pool_->WaitUntilReturned(blocks, Late())));
  EXPECT_TRUE(absl::IsInvalidArgument(
      pool_->WaitUntilReturned({blocks[0] + 256}, Late())));
  for (const BlockLease& one : pool_->Leases()) {
    EXPECT_EQ(one.lease.state, LeaseState::kHeld);
  }
  holder->blocks.clear();
  Free(blocks[0]);
}

TEST_F(PoolLeases, DeathReturnsWhatAProcessHeld) {
  const Share publication = Serve();
  const std::vector<CUdeviceptr> blocks = TakeBlocks(4);
  PoolPeer peer = StartPeer();
  ASSERT_EQ(peer.Subscribe(publication.ticket()), "OK");
  ASSERT_EQ(peer.Import(Must(pool_->ExportAll(blocks))), "OK");
  peer.child().Kill();
  const absl::Status back = pool_->WaitUntilReturned(blocks, Late());
  EXPECT_TRUE(back.ok()) << back;
  EXPECT_TRUE(pool_->Leases().empty());
  FreeAll(blocks);
  ExpectAllIsFree();
}

TEST_F(PoolLeases, OfAPeerThatHungUpAndLivesAreQuarantined) {
  const Share publication = Serve();
  const std::vector<CUdeviceptr> blocks = TakeBlocks(1);
  {
    // As a subscriber does, but for the goodbye; and it writes what it likes.
    platform::Channel channel = Must(platform::Channel::Connect(
        endpoint_->address(), platform::PeerPolicy{}, Late()));
    AskAndBeGranted(channel, publication.ticket());
    const pool::Welcome welcome = Must(pool::ReceiveWelcome(channel, Late()));
    const platform::SharedMemory holds =
        Must(platform::SharedMemory::Open(welcome.holds, pool::kHoldTableBytes,
                                          platform::PeerAccess::kReadWrite));
    const absl::Time joined = absl::Now();
    const std::uint32_t slot = Export(blocks[0]).slot;
    for (const std::uint32_t word : {1u, 0x7fffffffu, 0x80000000u, ~0u}) {
      reinterpret_cast<pool::Hold*>(holds.writable_bytes().data())[slot] = word;
      const std::vector<BlockLease> leases = pool_->Leases();
      ASSERT_EQ(leases.size(), 1u);
      EXPECT_GE(leases[0].lease.since, joined - absl::Seconds(5)) << word;
      EXPECT_LE(leases[0].lease.since, absl::Now()) << word;
    }
  }
  ExpectSoon([&] {
    const std::vector<BlockLease> leases = pool_->Leases();
    return leases.size() == 1 &&
           leases[0].lease.state == LeaseState::kQuarantined;
  });
  // It cannot be asked; that is told by the wait.
  pool_->RecallAll(Late());
  const absl::Status late = pool_->WaitUntilAllReturned(Soon());
  EXPECT_TRUE(absl::IsDeadlineExceeded(late));
  EXPECT_THAT(std::string(late.message()),
              HasSubstr("hung up and is not known to have ended"));
  Free(blocks[0]);
}

TEST_F(PoolLeases, TheEndOfTheOwnerIsToldAndWhatIsImportedStays) {
  std::optional<Share> publication = Serve();
  const std::vector<CUdeviceptr> blocks = TakePatterns(1, 5000, 77);
  const auto holder = Hold(*publication, blocks);
  publication.reset();
  endpoint_.reset();
  pool_.reset();
  ASSERT_TRUE(holder->AwaitEnded());
  EXPECT_TRUE(absl::IsUnavailable(holder->ended)) << holder->ended;
  EXPECT_EQ(holder->ended, holder->pool->connection());
  ExpectPattern(holder->blocks[0].address(), 5000, 77);
  // Who asks later is told at once.
  absl::Status told;
  holder->pool->Watch(
      {.disconnected = [&](const absl::Status& why) { told = why; }});
  EXPECT_EQ(told, holder->ended);
}

TEST_F(PoolLeases, AWatchThatComesLaterIsToldWhatWasAsked) {
  const Share publication = Serve();
  const std::vector<CUdeviceptr> blocks = TakeBlocks(2);
  const auto holder = Hold(publication, blocks);
  Must(pool_->Recall(blocks, Late()));
  ASSERT_TRUE(holder->AwaitTold(2));
  std::size_t told = 0;
  holder->pool->Watch({.recalled = [&](absl::Span<const RecalledBlock> all) {
    told = all.size();
  }});
  EXPECT_EQ(told, 2u);
  holder->blocks.clear();
  FreeAll(blocks);
}

TEST_F(PoolLeases, BlocksCanBeGivenBackByWhoIsTold) {
  const Share publication = Serve();
  const std::vector<CUdeviceptr> blocks = TakeBlocks(8);
  const auto holder = Hold(publication, blocks);
  holder->pool->Watch({.recalled = [&](absl::Span<const RecalledBlock> all) {
    for (const RecalledBlock& wanted : all) {
      std::erase_if(holder->blocks, [&](const ImportedBlock& block) {
        return block.address() == wanted.address;
      });
    }
  }});
  Must(pool_->Recall(blocks, Late()));
  const absl::Status back = pool_->WaitUntilReturned(blocks, Late());
  EXPECT_TRUE(back.ok()) << back;
  // The handler has returned when the watch is replaced.
  holder->pool->Watch({});
  EXPECT_TRUE(holder->blocks.empty());
  FreeAll(blocks);
}

}  // namespace
}  // namespace vmm::testing
