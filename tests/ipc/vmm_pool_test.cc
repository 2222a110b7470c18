// A pool's blocks between processes: shared by ticket, given back, and what
// becomes of them when one side ends or misbehaves.
#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/ipc/ask.h"
#include "tests/ipc/pool_ipc_test.h"
#include "tests/support/emulator.h"
#include "tests/support/host_instance.h"
#include "tests/support/how_many.h"
#include "vmm/pool/internal/share_protocol.h"
#include "vmm/pool/internal/shared_table_view.h"

namespace vmm::testing {
namespace {

using ::testing::HasSubstr;
using Args = std::vector<std::string>;

using PoolSharing = PoolIpcTest;

// The importer has a device of its own choice, on which it maps the blocks.
struct Importer {
  const char* name;
  std::vector<int>
      visible;  // Devices that it sees: this test's, then its peer.
  const char* options;
};
class PoolSharingOn : public PoolIpcTest,
                      public ::testing::WithParamInterface<Importer> {};

TEST_P(PoolSharingOn, ContentsAreSeenInBothDirections) {
  std::vector<std::string> visible;
  for (const int which : GetParam().visible) {
    const Device* const seen = which == 0 ? &device : Peer();
    if (seen == nullptr) GTEST_SKIP() << "needs two devices";
    visible.push_back(seen->uuid().ToString());
  }
  const Share publication = Serve();
  PoolPeer peer =
      StartPeer({{"CUDA_VISIBLE_DEVICES", absl::StrJoin(visible, ",")}});
  ASSERT_EQ(peer.Subscribe(publication.ticket(), GetParam().options), "OK");
  // Blocks of several sizes and segments, one larger than any.
  const std::uint64_t sizes[] = {1, 255, 70000, kMiB, 3 * kMiB, 9 * kMiB};
  std::vector<CUdeviceptr> blocks;
  for (std::uint64_t size : sizes) {
    blocks.push_back(Take(size));
    WritePattern(blocks.back(), size, 100 + blocks.size());
  }
  const std::vector<PoolTicket> tickets = Must(pool_->ExportAll(blocks));
  ASSERT_EQ(peer.Import(tickets), "OK");
  EXPECT_EQ(peer.Expect(0, blocks.size(), 101), "OK");
  EXPECT_EQ(peer.Write(0, blocks.size(), 201), "OK");
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    ExpectPattern(blocks[i], sizes[i], 201 + i);
  }
  // What is written later is seen too: it is the same memory, not a copy.
  WritePattern(blocks[2], sizes[2], 300);
  EXPECT_EQ(peer.Expect(2, 1, 300), "OK");
  EXPECT_EQ(peer.ReleaseAll(), "OK");
  FreeAll(blocks);
  EXPECT_EQ(peer.End(), 0);
  ExpectAllIsFree();
}

INSTANTIATE_TEST_SUITE_P(
    Devices, PoolSharingOn,
    ::testing::Values(Importer{"TheSame", {0}, "rw"},
                      Importer{"AnotherBesideIt", {1, 0}, "rw here"},
                      Importer{"AnotherAlone", {1}, "rw here"}),
    [](const auto& which) { return std::string(which.param.name); });

TEST_F(PoolSharing, BlocksAreReadOnlyUnlessAskedOtherwise) {
  const Share publication = Serve();
  PoolPeer peer = StartPeer();
  ASSERT_EQ(peer.Subscribe(publication.ticket()), "OK");
  const std::vector<CUdeviceptr> blocks = TakePatterns(1, 5000, 1);
  ASSERT_EQ(peer.Import(Export(blocks[0])), "OK");
  EXPECT_EQ(peer.ExpectReadOnly(0), "OK");
  EXPECT_EQ(peer.Expect(0, 1, 1), "OK");
  EXPECT_EQ(peer.End(), 0);
}

TEST_F(PoolSharing, ABlockMayBeginInOneSegmentAndEndInAnother) {
  if (IsTestOfLegacyIpc()) GTEST_SKIP() << "none lies beside another";
  const Share publication = Serve();
  PoolPeer peer = StartPeer();
  ASSERT_EQ(peer.Subscribe(publication.ticket(), "rw"), "OK");
  std::vector<CUdeviceptr> blocks = TakePatterns(9, 3 * kMiB, 7);
  for (std::size_t i = 1; i < blocks.size(); ++i) {
    EXPECT_EQ(blocks[i], blocks[0] + i * 3 * kMiB);
  }
  EXPECT_EQ(pool_->statistics().reserved, 28 * kMiB);
  ASSERT_EQ(peer.Import(Must(pool_->ExportAll(blocks))), "OK");
  EXPECT_EQ(peer.Segments(), 7u);
  EXPECT_EQ(peer.Expect(0, 9, 7), "OK");
  EXPECT_EQ(peer.Write(0, 9, 70), "OK");
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    ExpectPattern(blocks[i], 3 * kMiB, 70 + i);
  }
  // The third segment is that of the third and fourth block.
  Free(blocks[2]);
  Free(blocks[3]);
  EXPECT_EQ(Must(pool_->Trim()), 0u) << "the peer holds them";
  EXPECT_EQ(peer.ReleaseAll(), "OK");
  ExpectSoon([this] { return Must(pool_->Trim()) == 4 * kMiB; });
  ExpectSoon([&] { return peer.Segments() == 6u; });
  // What comes there now is other memory, for both.
  blocks[2] = Take(6 * kMiB);
  EXPECT_EQ(blocks[2], blocks[0] + 6 * kMiB);
  blocks.erase(blocks.begin() + 3);
  WritePattern(blocks[2], 6 * kMiB, 300);
  ASSERT_EQ(peer.Import(Export(blocks[2])), "OK");
  EXPECT_EQ(peer.Expect(0, 1, 300), "OK");
  EXPECT_EQ(peer.ReleaseAll(), "OK");
  FreeAll(blocks);
  ExpectSoon([this] {
    Must(pool_->Trim());
    return pool_->statistics().reserved == 0;
  });
  ExpectSoon([&] { return peer.Segments() == 0u; });
  EXPECT_EQ(peer.End(), 0);
  ExpectAllIsFree();
}

TEST_F(PoolSharing, SegmentsThatThereAreComeAtSubscription) {
  const std::vector<CUdeviceptr> blocks = TakePatterns(3, 3 * kMiB, 7);
  const std::vector<PoolTicket> tickets = Must(pool_->ExportAll(blocks));
  const Share publication = Serve();
  PoolPeer peer = StartPeer();
  ASSERT_EQ(peer.Subscribe(publication.ticket()), "OK");
  // The first import waits for its segment, whichever comes first.
  ASSERT_EQ(peer.Import(tickets), "OK");
  EXPECT_EQ(peer.Segments(), 3u);
  EXPECT_EQ(peer.Expect(0, 3, 7), "OK");
  EXPECT_EQ(peer.End(), 0);
}

TEST_F(PoolSharing, NewSegmentsArePushedBeforeAnybodyAsks) {
  const Share publication = Serve();
  PoolPeer peer = StartPeer();
  ASSERT_EQ(peer.Subscribe(publication.ticket()), "OK");
  EXPECT_EQ(peer.Segments(), 0u);
  const CUdeviceptr first = Take(3 * kMiB);
  const CUdeviceptr second = Take(3 * kMiB);
  ExpectSoon([&] { return peer.Segments() == 2; });
  // And are let go of when the pool gives them back.
  Free(first);
  Free(second);
  EXPECT_EQ(Must(pool_->Trim()), 8 * kMiB);
  ExpectSoon([&] { return peer.Segments() == 0; });
  EXPECT_EQ(peer.Connection(), "OK");
  EXPECT_EQ(peer.End(), 0);
}

TEST_F(PoolSharing, ManyBlocksAreImportedAtOnceAllOrNone) {
  const Share publication = Serve();
  PoolPeer peer = StartPeer();
  ASSERT_EQ(peer.Subscribe(publication.ticket()), "OK");
  std::vector<CUdeviceptr> blocks = TakePatterns(3000, 512, 1);
  std::vector<PoolTicket> tickets = Must(pool_->ExportAll(blocks));
  ASSERT_EQ(peer.Import(tickets), "OK");
  EXPECT_EQ(peer.Expect(0, 3000, 1), "OK");
  EXPECT_EQ(peer.ReleaseAll(), "OK");
  // One that was freed spoils the lot, and nothing of it stays held.
  Free(blocks[2999]);
  EXPECT_THAT(peer.Import(tickets), HasSubstr("FAILED_PRECONDITION"));
  blocks.pop_back();
  FreeAll(blocks);
  EXPECT_EQ(pool_->statistics().held, 0u);
  EXPECT_EQ(peer.End(), 0);
  ExpectAllIsFree();
}

TEST_F(PoolSharing, SeveralPeersHoldABlockUntilTheLastGivesItBack) {
  UsePool(SmallSegments(4 * kMiB));
  const Share publication = Serve();
  const std::vector<CUdeviceptr> blocks = TakePatterns(1, 4 * kMiB, 5);
  const PoolTicket ticket = Export(blocks[0]);
  std::vector<PoolPeer> peers;
  for (int i = 0; i < 3; ++i) {
    peers.push_back(StartPeer());
    ASSERT_EQ(peers.back().Subscribe(publication.ticket()), "OK");
    ASSERT_EQ(peers.back().Import(ticket), "OK");
  }
  EXPECT_EQ(pool_->statistics().peers, 3u);
  Free(blocks[0]);
  for (PoolPeer& peer : peers) {
    EXPECT_EQ(pool_->statistics().held, 4 * kMiB);
    EXPECT_EQ(pool_->statistics().quarantined, 0u);
    const absl::Status none = pool_->Allocate(4 * kMiB, nullptr).status();
    EXPECT_EQ(none.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(none.message(),
                HasSubstr("4194304 for peers to give them back. Free blocks"));
    EXPECT_EQ(peer.Expect(0, 1, 5), "OK");
    EXPECT_EQ(peer.ReleaseAll(), "OK");
  }
  // No message told the owner: it has looked.
  EXPECT_EQ(Take(4 * kMiB), blocks[0]);
  Free(blocks[0]);
  for (PoolPeer& peer : peers) EXPECT_EQ(peer.End(), 0);
  ExpectAllIsFree();
}

TEST_F(PoolSharing, ABlockThatNobodyHoldsIsUsedAgainAtOnce) {
  const Share publication = Serve();
  PoolPeer peer = StartPeer();
  ASSERT_EQ(peer.Subscribe(publication.ticket()), "OK");
  const CUdeviceptr block = Take(70000);
  ASSERT_EQ(peer.Import(Export(block)), "OK");
  EXPECT_EQ(peer.ReleaseAll(), "OK");
  Free(block);
  EXPECT_EQ(pool_->statistics().held, 0u);
  EXPECT_EQ(Take(70000), block);
  EXPECT_EQ(peer.End(), 0);
}

TEST_F(PoolSharing, UnsubscribingGivesAllBackWithAGoodbye) {
  const Share publication = Serve();
  PoolPeer peer = StartPeer();
  ASSERT_EQ(peer.Subscribe(publication.ticket()), "OK");
  const std::vector<CUdeviceptr> blocks = TakePatterns(10, 4096, 1);
  ASSERT_EQ(peer.Import(Must(pool_->ExportAll(blocks))), "OK");
  FreeAll(blocks);
  EXPECT_EQ(pool_->statistics().held, 40960u);
  EXPECT_EQ(peer.Unsubscribe(), "OK");
  // The process lives on.
  ExpectNothingHeld();
  ASSERT_EQ(peer.Subscribe(publication.ticket()), "OK");
  ExpectSoon([&] { return pool_->statistics().peers == 1; });
  EXPECT_EQ(peer.End(), 0);
  ExpectAllIsFree();
}

// --- Stale tickets -----------------------------------------------------------

// How many tickets of freed blocks are tried.
std::uint64_t StaleTickets() {
  return HowMany("VMMSHARE_STALE_TICKETS", 1'000'000);
}

using Pitfall29 = PoolIpcTest;
TEST_F(Pitfall29, TicketsOfRecycledBlocksAreRefusedEveryTime) {
  constexpr std::size_t kBlocks = 4096;
  const Share publication = Serve();
  PoolPeer peer = StartPeer();
  ASSERT_EQ(peer.Subscribe(publication.ticket()), "OK");
  std::vector<CUdeviceptr> blocks(kBlocks);
  std::vector<PoolTicket> stale;
  std::vector<PoolTicket> old;  // A few of each round.
  std::uint64_t tried = 0;
  std::uint64_t same_slot = 0;
  while (tried < StaleTickets()) {
    for (CUdeviceptr& block : blocks) block = Take(256);
    const std::vector<PoolTicket> tickets = Must(pool_->ExportAll(blocks));
    // Those of the last round, whose slots and bytes are others' by now.
    for (std::size_t i = 0; i < stale.size(); ++i) {
      same_slot += stale[i].slot == tickets[i].slot ||
                   stale[i].slot == tickets[kBlocks - 1 - i].slot;
    }
    ASSERT_EQ(peer.Refuse(stale), "OK");
    tried += stale.size();
    FreeAll(blocks);
    stale = tickets;
    old.insert(old.end(), tickets.begin(), tickets.begin() + 16);
  }
  ASSERT_EQ(peer.Refuse(stale), "OK") << "with empty slots";
  ASSERT_EQ(peer.Refuse(old), "OK") << "from all rounds";
  EXPECT_GT(same_slot, tried / 2) << "slots are used again";
  EXPECT_EQ(pool_->statistics().held, 0u);
  std::printf(
      "stale tickets refused: %llu\n",
      static_cast<unsigned long long>(tried + stale.size() + old.size()));
  EXPECT_EQ(peer.End(), 0);
  ExpectAllIsFree();
}

TEST_F(PoolSharing, AnImportThatRacesWithRecyclingNeverSeesAnothersData) {
  if (IsEmulated()) GTEST_SKIP() << kEmulatorReorders;
  constexpr std::size_t kBatch = 256;
  UsePool(SmallSegments(4 * kMiB));
  const Share publication = Serve();
  PoolPeer peer = StartPeer();
  ASSERT_EQ(peer.Subscribe(publication.ticket()), "OK");
  peer.StartRace();
  std::uint64_t sent = 0;
  while (sent < StaleTickets() / 4) {
    std::vector<CUdeviceptr> blocks(kBatch);
    std::vector<PoolTicket> tickets;
    for (CUdeviceptr& block : blocks) {
      block = Take(8192);
      tickets.push_back(Export(block));
      EXPECT_EQ(driver()->cuMemcpyHtoD(block, &tickets.back().generation,
                                       sizeof(std::uint64_t)),
                CUDA_SUCCESS);
    }
    EXPECT_EQ(driver()->cuStreamSynchronize(nullptr), CUDA_SUCCESS);
    // A quarter is freed before the peer has the tickets, a half while it
    // imports them, and the rest afterwards, when it may hold them.
    const auto free = [&](std::size_t from, std::size_t to) {
      while (from < to) Free(blocks[from++]);
    };
    free(0, kBatch / 4);
    peer.SendTickets(tickets);
    sent += tickets.size();
    free(kBatch / 4, kBatch * 3 / 4);
    ASSERT_EQ(peer.AwaitBatch(), "");
    free(kBatch * 3 / 4, kBatch);
  }
  const PoolPeer::Raced raced = peer.EndRace();
  EXPECT_EQ(raced.imported + raced.refused, sent);
  EXPECT_GE(raced.imported, sent / 4);
  EXPECT_GE(raced.refused, sent / 4);
  std::printf("raced: %llu imported, %llu refused\n",
              static_cast<unsigned long long>(raced.imported),
              static_cast<unsigned long long>(raced.refused));
  EXPECT_EQ(peer.End(), 0);
  ExpectAllIsFree();
}

// --- The end of a peer -------------------------------------------------------

using Pitfall26 = PoolIpcTest;
TEST_F(Pitfall26, AKilledPeersBlocksComeBackByItsConnection) {
  UsePool(SmallSegments(8 * kMiB));
  const Share publication = Serve();
  for (int round = 0; round < 3; ++round) {
    PoolPeer peer = StartPeer();
    ASSERT_EQ(peer.Subscribe(publication.ticket()), "OK");
    const std::vector<CUdeviceptr> blocks = TakePatterns(8, kMiB, 1);
    ASSERT_EQ(peer.Import(Must(pool_->ExportAll(blocks))), "OK");
    FreeAll(blocks);
    EXPECT_EQ(pool_->statistics().held, 8 * kMiB);
    EXPECT_EQ(pool_->Allocate(kMiB, nullptr).status().code(),
              absl::StatusCode::kResourceExhausted);
    ExpectWhole();
    peer.child().Kill();
    EXPECT_EQ(peer.child().Wait(), Child::kKilled);
    ExpectNothingHeld();
  }
  ExpectAllIsFree();
}

TEST_F(PoolSharing, PeersKilledAmidImportsLeaveThePoolWhole) {
  const Share publication = Serve();
  std::vector<CUdeviceptr> blocks = TakePatterns(500, 4096, 1);
  for (int round = 0; round < 10; ++round) {
    PoolPeer peer = StartPeer();
    ASSERT_EQ(peer.Subscribe(publication.ticket()), "OK");
    peer.Churn(Must(pool_->ExportAll(blocks)));
    for (std::size_t i = 0; i < 100; ++i) {
      Free(blocks[i]);
      blocks[i] = Take(4096);
    }
    peer.child().Kill();
    EXPECT_EQ(peer.child().Wait(), Child::kKilled);
    ExpectNothingHeld();
  }
  FreeAll(blocks);
  ExpectAllIsFree();
}

// Subscribes by hand, holds the blocks of the tickets it is sent, and never
// reads what the owner says.
int HoldAndNeverRead(const Args& args) {
  platform::Channel boss = Dial(args[0]);
  const AddressedPool pool = Must(ParsePoolString(args[1]));
  platform::Channel owner = Dial(pool.invitation.address);
  AskAndBeGranted(owner, args[1]);
  const pool::Welcome welcome = Must(pool::ReceiveWelcome(owner, Late()));
  const auto table = Must(
      pool::SharedTableView::Open(welcome.table, welcome.holds, pool.domain));
  const platform::Message tickets = Must(boss.Receive(Late()));
  for (std::size_t at = 0; at < tickets.payload.size();
       at += kPoolTicketBytes) {
    Must(table->Acquire(Must(DecodePoolTicket(
        absl::MakeConstSpan(tickets.payload).subspan(at, kPoolTicketBytes)))));
  }
  Tell(boss);
  Must(boss.WaitForHangUp(absl::InfiniteFuture()));
  return 0;
}
const bool kHoldAndNeverRead =
    RegisterChild("hold-and-never-read", &HoldAndNeverRead);

TEST_F(PoolSharing, ASubscriberThatNeverReadsIsDisconnectedAndItsBlocksWait) {
  EndpointOptions options;
  options.transfer_timeout = absl::Milliseconds(300);
  endpoint_ = StartEndpoint(options);
  const Share publication = Serve();
  Child child =
      Child::Start("hold-and-never-read", {address(), publication.ticket()});
  platform::Channel channel = Accept();
  const CUdeviceptr block = Take(70000);
  const PoolTicketBytes bytes = EncodePoolTicket(Export(block));
  Must(channel.Send(kText, bytes, {}, Late()));
  Hear(channel);
  // Segments come and go, and nobody waits for the peer.
  const absl::Time started = absl::Now();
  while (pool_->statistics().last_error.ok() &&
         absl::Now() - started < absl::Seconds(20)) {
    Free(Take(4 * kMiB));
    Must(pool_->Trim());
  }
  EXPECT_THAT(std::string(pool_->statistics().last_error.message()),
              HasSubstr("a subscriber was disconnected"));
  ExpectSoon([&] { return pool_->statistics().peers == 0; });
  Free(Take(4 * kMiB));
  // It lives, so that it may yet use what it holds.
  Free(block);
  EXPECT_EQ(pool_->statistics().held, 70144u);
  EXPECT_EQ(pool_->statistics().quarantined, 70144u);
  EXPECT_NE(Take(70000), block);
  child.Kill();
  EXPECT_EQ(child.Wait(), Child::kKilled);
  ExpectNothingHeld();
  EXPECT_EQ(pool_->statistics().quarantined, 0u);
}

// --- The end of the owner ----------------------------------------------------

// Owns a pool with 3 blocks, of patterns 1 to 3; sends the pool's string and
// the tickets; goes on when told, frees the first block, and waits.
int OwnAPool(const Args& args) {
  const Here here;
  platform::Channel boss = Dial(args[0]);
  const std::unique_ptr<Pool> pool =
      Must(Pool::Create(here.device, {.first_segment_size = 4 * kMiB,
                                      .max_segment_size = 4 * kMiB}));
  EndpointOptions options;
  options.listener.directory = args[1];
  const std::unique_ptr<Endpoint> endpoint = Must(Endpoint::Start(options));
  const Share publication = Must(endpoint->Serve(*pool));
  std::vector<CUdeviceptr> blocks;
  for (std::uint64_t seed : {1, 2, 3}) {
    blocks.push_back(Must(pool->Allocate(3 * kMiB, nullptr)));
    WritePattern(blocks.back(), 3 * kMiB, seed);
  }
  Tell(boss, publication.ticket());
  for (const PoolTicket& ticket : Must(pool->ExportAll(blocks))) {
    Must(boss.Send(kText, EncodePoolTicket(ticket), {}, Late()));
  }
  while (boss.Receive(absl::InfiniteFuture()).ok()) {
    Must(pool->Free(blocks.front(), nullptr));
    Tell(boss);
  }
  return 0;
}
const bool kOwnAPool = RegisterChild("own-a-pool", &OwnAPool);

class PoolOfAnother : public IpcTest {
 protected:
  void SetUp() override {
    owner_.emplace(
        Child::Start("own-a-pool", {address(), listener_directory()}));
    channel_.emplace(Accept());
    string_ = Hear(*channel_);
    for (int i = 0; i < 3; ++i) {
      tickets_.push_back(
          Must(DecodePoolTicket(Must(channel_->Receive(Late())).payload)));
    }
    pool_ = Must(ImportedPool::Subscribe(driver(), string_, {}, Late()));
  }
  void KillOwner() {
    owner_->Kill();
    EXPECT_EQ(owner_->Wait(), Child::kKilled);
  }

  std::optional<Child> owner_;
  std::optional<platform::Channel> channel_;
  std::string string_;
  std::vector<PoolTicket> tickets_;
  std::unique_ptr<ImportedPool> pool_;
};

TEST_F(PoolOfAnother, KeepsItsDataWhenItsOwnerIsKilled) {
  std::vector<ImportedBlock> blocks =
      Must(pool_->ImportAll(absl::MakeConstSpan(tickets_).first(2), Late()));
  // All three segments are here; the third block is not imported yet.
  ExpectSoon([this] { return pool_->statistics().segments == 3; });
  EXPECT_TRUE(pool_->connection().ok());
  KillOwner();
  ExpectSoon([this] { return !pool_->connection().ok(); });
  EXPECT_EQ(pool_->connection().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(pool_->connection().message()),
              HasSubstr("the pool's owner serves this process no more"));
  ExpectPattern(blocks[0].address(), blocks[0].size(), 1);
  ExpectPattern(blocks[1].address(), blocks[1].size(), 2);
  // The table is as its owner left it.
  const ImportedBlock third = Must(pool_->Import(tickets_[2], Late()));
  ExpectPattern(third.address(), third.size(), 3);
  blocks.clear();
  EXPECT_EQ(pool_->statistics().imported, 1u);
  EXPECT_EQ(
      ImportedPool::Subscribe(driver(), string_, {}, Late()).status().code(),
      absl::StatusCode::kNotFound);
}

TEST_F(PoolOfAnother, EndsWellWhenItsOwnerHasEndedWell) {
  const ImportedBlock block = Must(pool_->Import(tickets_[1], Late()));
  channel_->Close();
  EXPECT_EQ(owner_->Wait(), 0);
  ExpectSoon([this] { return !pool_->connection().ok(); });
  ExpectPattern(block.address(), block.size(), 2);
}

TEST_F(PoolOfAnother, RefusesWhatTheOwnerFreedBeforeItsEnd) {
  const ImportedBlock first = Must(pool_->Import(tickets_[0], Late()));
  Tell(*channel_);
  Hear(*channel_);
  KillOwner();
  // Held still, by the one above; refused to others.
  EXPECT_EQ(pool_->Import(tickets_[0], Late()).status().code(),
            absl::StatusCode::kFailedPrecondition);
  ExpectPattern(first.address(), first.size(), 1);
}

// --- Domains, and the lack of memory -----------------------------------------

TEST_F(PoolSharing, AnotherDomainsPeerNeverSeesWhatWasThere) {
  UsePool(SmallSegments(4 * kMiB));
  const SharingDomain second = pool_->NewDomain();
  const CUdeviceptr secret = Take(4 * kMiB);
  const PoolTicket of_first = Export(secret);
  WritePattern(secret, 4 * kMiB, 1);
  const Share publication = Serve(second);
  PoolPeer peer = StartPeer();
  ASSERT_EQ(peer.Subscribe(publication.ticket()), "OK");
  EXPECT_EQ(peer.Segments(), 0u) << "the segment is the first domain's";
  EXPECT_THAT(peer.Import(of_first), HasSubstr("of another sharing domain"));
  Free(secret);
  const CUdeviceptr moved = Take(4 * kMiB, second);
  EXPECT_EQ(pool_->statistics().reserved, 4 * kMiB);
  ASSERT_EQ(peer.Import(Export(moved)), "OK");
  EXPECT_EQ(peer.ExpectZeros(0), "OK");
  EXPECT_EQ(peer.End(), 0);
  Free(moved);
  ExpectAllIsFree();
}

TEST_F(PoolSharing, WhatAPeerHasSeenMovesToNoOtherDomain) {
  UsePool(SmallSegments(4 * kMiB));
  const SharingDomain second = pool_->NewDomain();
  const Share publication = Serve();
  // A peer that keeps what it is told to let go of.
  platform::Channel channel = Dial(endpoint_->address());
  AskAndBeGranted(channel, publication.ticket());
  Must(pool::ReceiveWelcome(channel, Late()));
  const CUdeviceptr seen = Take(4 * kMiB);
  WritePattern(seen, 4 * kMiB, 1);
  const pool::Notice notice =
      Must(pool::ReceiveNotice(channel, Late(), nullptr));
  const auto& segment =
      *std::get<std::shared_ptr<const pool::SharedSegment>>(notice);
  const ImportedAllocation kept = Must(ImportedAllocation::Open(
      driver(), segment.ticket, absl::MakeConstSpan(&segment.handle, 1), {}));
  ExpectPattern(kept.address(), 4 * kMiB, 1);
  Free(seen);
  // Not moved, but given back to the driver and made anew.
  const CUdeviceptr other = Take(4 * kMiB, second);
  WritePattern(other, 4 * kMiB, 9);
  ExpectPattern(kept.address(), 4 * kMiB, 1);
  Free(other);
  Must(pool::SendBye(channel, Late()));
  ExpectAllIsFree();
}

TEST_F(PoolSharing, BadFreesAndExportsAreTypedErrorsWhilePeersHoldBlocks) {
  const Share publication = Serve();
  PoolPeer peer = StartPeer();
  ASSERT_EQ(peer.Subscribe(publication.ticket()), "OK");
  const std::vector<CUdeviceptr> blocks = TakePatterns(2, 70000, 1);
  ASSERT_EQ(peer.Import(Must(pool_->ExportAll(blocks))), "OK");
  const Allocation foreign = Make(kGranule);
  for (CUdeviceptr bad : {foreign.address(), blocks[0] + 256, CUdeviceptr{0}}) {
    EXPECT_EQ(pool_->Free(bad, nullptr).code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(pool_->Export(bad).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  Free(blocks[0]);
  // Freed, and held by the peer.
  EXPECT_EQ(pool_->Free(blocks[0], nullptr).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(pool_->Export(blocks[0]).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(peer.Expect(0, 2, 1), "OK");
  EXPECT_EQ(peer.End(), 0);
  Free(blocks[1]);
  ExpectAllIsFree();
}

TEST_F(PoolSharing, ThreadsOfBothSidesShareAndRecycleAtOnce) {
  constexpr int kThreads = 3;
  constexpr int kRounds = 300;
  const Share publication = Serve();
  const std::unique_ptr<ImportedPool> imported = Subscribe(publication);
  CUcontext context = nullptr;
  ASSERT_EQ(driver()->cuCtxGetCurrent(&context), CUDA_SUCCESS);
  std::mutex mutex;
  std::vector<PoolTicket> tickets;  // The last ones of all owners.
  std::atomic<int> at_work = kThreads;
  std::atomic<std::uint64_t> got = 0;
  std::atomic<std::uint64_t> refused = 0;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {  // An owner.
      EXPECT_EQ(driver()->cuCtxSetCurrent(context), CUDA_SUCCESS);
      const absl::Time deadline = Late();
      std::vector<CUdeviceptr> last;  // Lives for one round more.
      for (int round = 0;
           round < kRounds || (got == 0 && absl::Now() < deadline); ++round) {
        std::vector<CUdeviceptr> blocks;
        for (int i = 0; i < 20; ++i) blocks.push_back(Take(4096 << (i % 4)));
        std::vector<PoolTicket> fresh = Must(pool_->ExportAll(blocks));
        {
          std::lock_guard<std::mutex> lock(mutex);
          tickets = std::move(fresh);
        }
        if (round % 50 == thread) Must(pool_->Trim(4 * kMiB));
        if (round % 20 == thread) static_cast<void>(pool_->statistics());
        FreeAll(last);
        last = std::move(blocks);
      }
      FreeAll(last);
      --at_work;
    });
    threads.emplace_back([&] {  // An importer.
      EXPECT_EQ(driver()->cuCtxSetCurrent(context), CUDA_SUCCESS);
      while (at_work > 0) {
        std::vector<PoolTicket> wanted;
        {
          std::lock_guard<std::mutex> lock(mutex);
          wanted = tickets;
        }
        std::vector<ImportedBlock> blocks;
        for (const PoolTicket& ticket : wanted) {
          absl::StatusOr<ImportedBlock> block =
              imported->Import(ticket, Late());
          if (block.ok()) {
            EXPECT_EQ(block->size(), ticket.size);
            blocks.push_back(*std::move(block));
            ++got;
          } else {
            EXPECT_EQ(block.status().code(),
                      absl::StatusCode::kFailedPrecondition)
                << block.status();
            ++refused;
          }
        }
        if (got % 3 == 0) {
          const absl::Status released =
              imported->ReleaseAllAfter(std::move(blocks), nullptr);
          EXPECT_TRUE(released.ok()) << released;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(got, 0u);
  ExpectSoon([&] { return imported->statistics().imported == 0; });
  EXPECT_EQ(pool_->statistics().held, 0u);
  EXPECT_EQ(pool_->statistics().live, 0u);
  ExpectWhole();
}

std::size_t FreeBytes() {
  std::size_t free = 0;
  std::size_t total = 0;
  EXPECT_EQ(TestDriver()->cuMemGetInfo(&free, &total), CUDA_SUCCESS);
  return free;
}

// In a machine of its own with devices of 64 MiB: a pool without a cap grows
// until the driver has no more, with a subscriber, again and again.
int GrowUntilNothingIsLeft(const Args& args) {
  const Here here;
  const Inventory before = TakeInventory(TestDriver());
  {
    const std::unique_ptr<Pool> pool =
        Must(Pool::Create(here.device, {.first_segment_size = 8 * kMiB,
                                        .max_segment_size = 32 * kMiB}));
    EndpointOptions options;
    options.listener.directory = args[0];
    const std::unique_ptr<Endpoint> endpoint = Must(Endpoint::Start(options));
    const Share publication = Must(endpoint->Serve(*pool));
    const std::unique_ptr<ImportedPool> imported = Must(ImportedPool::Subscribe(
        TestDriver(), publication.ticket(), {}, Late()));
    const std::size_t at_first = FreeBytes();
    for (int round = 0; round < 3; ++round) {
      std::vector<CUdeviceptr> blocks;
      std::vector<ImportedBlock> held;
      absl::StatusOr<CUdeviceptr> block;
      while ((block = pool->Allocate(kMiB, nullptr)).ok()) {
        blocks.push_back(*block);
        WritePattern(*block, 4096, blocks.size());
        held.push_back(
            Must(imported->Import(Must(pool->Export(*block)), Late())));
      }
      EXPECT_EQ(block.status().code(), absl::StatusCode::kResourceExhausted)
          << block.status();
      EXPECT_THAT(std::string(block.status().message()),
                  HasSubstr("the pool has no room for 1048576 bytes"));
      EXPECT_THAT(std::string(block.status().message()),
                  HasSubstr("cuMemCreate"));
      // What is left of 64 MiB is less than the context takes and a granule.
      EXPECT_GE(blocks.size(), 48u);
      EXPECT_TRUE(pool->CheckInvariants().ok());
      for (std::size_t i = 0; i < held.size(); ++i) {
        ExpectPattern(held[i].address(), 4096, i + 1);
      }
      for (CUdeviceptr one : blocks) Must(pool->Free(one, nullptr));
      EXPECT_EQ(pool->statistics().held, blocks.size() * kMiB);
      held.clear();
      EXPECT_EQ(pool->statistics().held, 0u);
      if (round == 1) {
        Must(pool->Trim());
        // The memory is there again once the subscriber has let go of it.
        ExpectSoon([&] { return FreeBytes() >= at_first; });
      }
    }
    EXPECT_TRUE(pool->CheckInvariants().ok());
    EXPECT_TRUE(imported->connection().ok()) << imported->connection();
  }
  for (const std::string& line :
       Differences(before, TakeInventory(TestDriver()))) {
    ADD_FAILURE() << line;
  }
  return 0;
}
const bool kGrowUntilNothingIsLeft =
    RegisterChild("grow-until-nothing-is-left", &GrowUntilNothingIsLeft);

TEST_F(PoolSharing, OutOfMemoryInTheMiddleOfGrowthLosesNothing) {
  if (!OnHostMemoryDriver()) GTEST_SKIP() << "needs a device of 64 MiB";
  Child child =
      Child::Start("grow-until-nothing-is-left", {listener_directory()},
                   {{"VMMSHARE_HOST_MEMORY", "64M"},
                    {"VMMSHARE_HOST_INSTANCE", HostInstanceName("pool-oom")}});
  EXPECT_EQ(child.Wait(), 0);
}

}  // namespace
}  // namespace vmm::testing
