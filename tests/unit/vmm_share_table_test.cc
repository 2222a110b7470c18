// The share table and a peer's view of it, in one process: both sides map the
// same memory, at two addresses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "platform/ipc/shared_memory.h"
#include "tests/support/how_many.h"
#include "tests/support/must.h"
#include "tests/support/open_handles.h"
#include "vmm/pool/internal/share_table.h"
#include "vmm/pool/internal/shared_table_view.h"

namespace vmm::pool {
namespace {

using platform::PeerAccess;
using platform::SharedMemory;
using ::testing::HasSubstr;
using testing::Must;

constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();

DomainId Domain(std::uint8_t first) {
  DomainId domain;
  domain.bytes.fill(first);
  return domain;
}

class ShareTableTest : public ::testing::Test {
 protected:
  struct Peer {
    PeerId id;
    std::unique_ptr<SharedTableView> view;
  };
  Peer NewPeer() {
    const PeerId id = Must(table_.AddPeer());
    return {id, Must(SharedTableView::Open(table_.table_handle(),
                                           table_.holds_handle(id),
                                           table_.domain()))};
  }
  PoolTicket Share(std::uint32_t segment = 3, std::uint64_t offset = 4096,
                   std::uint64_t size = 512) {
    const SlotRef ref = Must(table_.Publish(segment, offset, size));
    return {table_.domain(), segment, ref.slot, ref.generation, offset, size};
  }

  testing::ExpectNoNewHandles no_new_handles_;
  ShareTable table_ = Must(ShareTable::Create(Domain(7)));
};

TEST_F(ShareTableTest, ATicketIsAcceptedWhileItsBlockIsShared) {
  Peer peer = NewPeer();
  const PoolTicket ticket = Share();
  EXPECT_EQ(peer.view->Acquire(ticket), absl::OkStatus());
  EXPECT_EQ(peer.view->References(ticket.slot), 1u);
  EXPECT_EQ(table_.HoldsOf(peer.id), 1u);
  EXPECT_NE(table_.HoldOf(ticket.slot, peer.id), 0u);
  EXPECT_EQ(table_.HoldOf(Share().slot, peer.id), 0u);
  table_.Withdraw(ticket.slot);
  EXPECT_TRUE(table_.Held(ticket.slot));
  peer.view->Release(ticket.slot);
  EXPECT_FALSE(table_.Held(ticket.slot));
  EXPECT_EQ(table_.HoldsOf(peer.id), 0u);
  table_.Recycle(ticket.slot);
  EXPECT_EQ(table_.slots_in_use(), 1u);
}

TEST_F(ShareTableTest, ASlotSaysItsGenerationUntilItIsRecycled) {
  const SlotRef first = Must(table_.Publish(1, 0, 512));
  const SlotRef second = Must(table_.Publish(1, 512, 512));
  EXPECT_NE(first.generation, second.generation);
  EXPECT_EQ(table_.GenerationOf(first.slot), first.generation);
  EXPECT_EQ(table_.GenerationOf(second.slot), second.generation);
  table_.Withdraw(first.slot);
  EXPECT_EQ(table_.GenerationOf(first.slot), first.generation);
  table_.Recycle(first.slot);
  const SlotRef third = Must(table_.Publish(1, 0, 512));
  ASSERT_EQ(third.slot, first.slot);
  EXPECT_EQ(table_.GenerationOf(third.slot), third.generation);
  EXPECT_NE(third.generation, first.generation);
}

TEST_F(ShareTableTest, ABlockMayEndWhere64BitsDo) {
  Peer peer = NewPeer();
  const PoolTicket last = Share(1, kMax - 512, 512);
  EXPECT_EQ(peer.view->Acquire(last), absl::OkStatus());
  peer.view->Release(last.slot);
}

TEST_F(ShareTableTest, ASlotIsInUseUntilItIsRecycled) {
  const SlotRef first = Must(table_.Publish(1, 0, 512));
  const SlotRef second = Must(table_.Publish(1, 512, 512));
  EXPECT_TRUE(table_.IsInUse(first));
  EXPECT_TRUE(table_.IsInUse(second));
  EXPECT_FALSE(table_.IsInUse({first.slot, second.generation}));
  EXPECT_FALSE(table_.IsInUse({second.slot + 1, second.generation}));
  EXPECT_FALSE(table_.IsInUse({kPoolSlots, second.generation}));
  table_.Withdraw(first.slot);
  EXPECT_TRUE(table_.IsInUse(first));
  table_.Recycle(first.slot);
  EXPECT_FALSE(table_.IsInUse(first));
  EXPECT_TRUE(table_.IsInUse(second));
  const SlotRef third = Must(table_.Publish(1, 0, 512));
  ASSERT_EQ(third.slot, first.slot);
  EXPECT_FALSE(table_.IsInUse(first));
  EXPECT_TRUE(table_.IsInUse(third));
}

TEST_F(ShareTableTest, SaysWhetherAnyPeerHoldsAnything) {
  EXPECT_FALSE(table_.AnyHeld());
  Peer one = NewPeer();
  Peer two = NewPeer();
  const PoolTicket first = Share();
  const PoolTicket second = Share();
  EXPECT_FALSE(table_.AnyHeld());
  ASSERT_EQ(two.view->Acquire(second), absl::OkStatus());
  EXPECT_TRUE(table_.AnyHeld());
  ASSERT_EQ(one.view->Acquire(first), absl::OkStatus());
  two.view->Release(second.slot);
  EXPECT_TRUE(table_.AnyHeld());
  one.view->Release(first.slot);
  EXPECT_FALSE(table_.AnyHeld());
  // Whatever is written there, as long as it is not 0.
  const SharedMemory holds = Must(SharedMemory::Open(
      table_.holds_handle(one.id), kHoldTableBytes, PeerAccess::kReadWrite));
  for (const std::uint8_t word : {1, 0x80, 0}) {
    holds.writable_bytes()[first.slot * sizeof(Hold)] = word;
    EXPECT_EQ(table_.AnyHeld(), word != 0);
    EXPECT_EQ(table_.HoldsOf(one.id), word != 0 ? 1u : 0u);
  }
}

TEST_F(ShareTableTest, SlotsAreNumberedFromZeroAndUsedAgainLastInFirstOut) {
  EXPECT_EQ(table_.slots_in_use(), 0u);
  for (std::uint32_t i = 0; i < 3; ++i) EXPECT_EQ(Share().slot, i);
  for (const std::uint32_t slot : {0, 2}) {
    table_.Withdraw(slot);
    table_.Recycle(slot);
  }
  EXPECT_EQ(table_.slots_in_use(), 1u);
  EXPECT_EQ(Share().slot, 2u);
  EXPECT_EQ(Share().slot, 0u);
  EXPECT_EQ(Share().slot, 3u);
}

TEST_F(ShareTableTest, SeveralAreHeldTogetherOrNoneIs) {
  Peer peer = NewPeer();
  std::vector<PoolTicket> tickets;
  for (int i = 0; i < 20; ++i) tickets.push_back(Share());
  ASSERT_EQ(peer.view->Acquire(tickets), absl::OkStatus());
  EXPECT_EQ(table_.HoldsOf(peer.id), 20u);
  EXPECT_EQ(peer.view->Acquire(absl::Span<const PoolTicket>()),
            absl::OkStatus());
  table_.Withdraw(tickets[17].slot);
  // What is held already stays held, once.
  EXPECT_TRUE(absl::IsFailedPrecondition(peer.view->Acquire(tickets)));
  for (const PoolTicket& ticket : tickets) {
    EXPECT_EQ(peer.view->References(ticket.slot), 1u);
    peer.view->Release(ticket.slot);
  }
  EXPECT_EQ(table_.HoldsOf(peer.id), 0u);
  const PoolTicket freed = std::exchange(tickets[17], Share());
  ASSERT_EQ(peer.view->Acquire(tickets), absl::OkStatus());
  for (const PoolTicket& ticket : tickets) peer.view->Release(ticket.slot);
  // Whatever is wrong with one, wherever it stands.
  PoolTicket foreign = Share(), nothing = Share(), altered = Share();
  foreign.domain = Domain(9);
  nothing.generation = 0;
  altered.size ^= 64;
  for (const PoolTicket& bad : {freed, foreign, nothing, altered}) {
    for (const std::size_t at : {0, 9, 19}) {
      const PoolTicket good = std::exchange(tickets[at], bad);
      EXPECT_FALSE(peer.view->Acquire(tickets).ok());
      EXPECT_EQ(table_.HoldsOf(peer.id), 0u) << bad.Describe() << " at " << at;
      EXPECT_EQ(peer.view->References(tickets[5].slot), 0u);
      tickets[at] = good;
    }
  }
}

TEST_F(ShareTableTest, OfSeveralTheFirstThatIsRefusedSaysWhy) {
  Peer peer = NewPeer();
  const PoolTicket good = Share(), freed = Share();
  table_.Withdraw(freed.slot);
  PoolTicket foreign = good;
  foreign.domain = Domain(9);
  EXPECT_TRUE(absl::IsFailedPrecondition(
      peer.view->Acquire(std::vector{good, freed, foreign})));
  EXPECT_TRUE(absl::IsInvalidArgument(
      peer.view->Acquire(std::vector{good, foreign, freed})));
  EXPECT_EQ(table_.HoldsOf(peer.id), 0u);
}

TEST_F(ShareTableTest, OneTicketMayBeAmongSeveralTwice) {
  Peer peer = NewPeer();
  const PoolTicket old_ticket = Share();
  table_.Withdraw(old_ticket.slot);
  table_.Recycle(old_ticket.slot);
  const PoolTicket ticket = Share();
  ASSERT_EQ(ticket.slot, old_ticket.slot);
  ASSERT_EQ(peer.view->Acquire(std::vector{ticket, ticket}), absl::OkStatus());
  EXPECT_EQ(peer.view->References(ticket.slot), 2u);
  // Of one slot, and one of them is of its last block.
  for (const auto& both :
       {std::vector{ticket, old_ticket}, std::vector{old_ticket, ticket}}) {
    EXPECT_TRUE(absl::IsFailedPrecondition(peer.view->Acquire(both)));
    EXPECT_EQ(peer.view->References(ticket.slot), 2u);
  }
  peer.view->Release(ticket.slot);
  EXPECT_NE(table_.HoldOf(ticket.slot, peer.id), 0u);
  peer.view->Release(ticket.slot);
  EXPECT_EQ(table_.HoldOf(ticket.slot, peer.id), 0u);
  for (const auto& both :
       {std::vector{ticket, old_ticket}, std::vector{old_ticket, ticket}}) {
    EXPECT_TRUE(absl::IsFailedPrecondition(peer.view->Acquire(both)));
    EXPECT_EQ(table_.HoldOf(ticket.slot, peer.id), 0u);
  }
}

TEST_F(ShareTableTest, ABlockIsHeldAsOftenAsCanBeCounted) {
  const PeerId peer = Must(table_.AddPeer());
  const auto view = Must(SharedTableView::Open(
      table_.table_handle(), table_.holds_handle(peer), table_.domain(), 3));
  const PoolTicket ticket = Share(), other = Share();
  ASSERT_EQ(view->Acquire(ticket), absl::OkStatus());
  ASSERT_EQ(view->Acquire(std::vector{ticket, other}), absl::OkStatus());
  // One too many within one call, and what is held stays as it was.
  for (const auto& tickets :
       {std::vector{ticket, ticket}, std::vector{other, ticket, ticket},
        std::vector{ticket, ticket, other}}) {
    const absl::Status refused = view->Acquire(tickets);
    EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
    EXPECT_THAT(refused.message(), HasSubstr("is held 3 times"));
    EXPECT_EQ(view->References(ticket.slot), 2u);
    EXPECT_EQ(view->References(other.slot), 1u);
  }
  ASSERT_EQ(view->Acquire(ticket), absl::OkStatus());
  EXPECT_TRUE(absl::IsResourceExhausted(view->Acquire(ticket)));
  EXPECT_EQ(view->References(ticket.slot), 3u);
  // One that was freed is refused for that, wherever the other one stands.
  table_.Withdraw(other.slot);
  EXPECT_TRUE(
      absl::IsFailedPrecondition(view->Acquire(std::vector{other, ticket})));
  EXPECT_TRUE(
      absl::IsResourceExhausted(view->Acquire(std::vector{ticket, other})));
  for (int i = 0; i < 3; ++i) view->Release(ticket.slot);
  EXPECT_EQ(view->References(ticket.slot), 0u);
  view->Release(other.slot);
  EXPECT_EQ(table_.HoldsOf(peer), 0u);
}

TEST_F(ShareTableTest, AViewSaysWhichBlockItHolds) {
  Peer peer = NewPeer();
  const PoolTicket ticket = Share();
  EXPECT_FALSE(peer.view->Holds(ticket.slot, ticket.generation));
  EXPECT_FALSE(peer.view->Holds(ticket.slot, 0));
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(peer.view->Acquire(ticket), absl::OkStatus());
  }
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(peer.view->Holds(ticket.slot, ticket.generation));
    EXPECT_FALSE(peer.view->Holds(ticket.slot, ticket.generation + 1));
    EXPECT_FALSE(peer.view->Holds(ticket.slot + 1, ticket.generation));
    peer.view->Release(ticket.slot);
  }
  EXPECT_FALSE(peer.view->Holds(ticket.slot, ticket.generation));
  EXPECT_FALSE(peer.view->Holds(kPoolSlots - 1, ticket.generation));
  EXPECT_EQ(peer.view->References(kPoolSlots - 1), 0u);
}

TEST_F(ShareTableTest, TheOwnerSeesTheWordOfTheFirstHold) {
  Peer peer = NewPeer();
  const PoolTicket ticket = Share();
  ASSERT_EQ(peer.view->Acquire(absl::MakeConstSpan(&ticket, 1), 71),
            absl::OkStatus());
  EXPECT_EQ(table_.HoldOf(ticket.slot, peer.id), 71u);
  ASSERT_EQ(peer.view->Acquire(absl::MakeConstSpan(&ticket, 1), 72),
            absl::OkStatus());
  EXPECT_EQ(table_.HoldOf(ticket.slot, peer.id), 71u);
  peer.view->Release(ticket.slot);
  EXPECT_EQ(table_.HoldOf(ticket.slot, peer.id), 71u);
  peer.view->Release(ticket.slot);
  EXPECT_EQ(table_.HoldOf(ticket.slot, peer.id), 0u);
}

TEST_F(ShareTableTest, WhatIsMadeAheadIsEmpty) {
  Peer peer = NewPeer();
  const PoolTicket ticket = Share();
  ASSERT_EQ(peer.view->Acquire(ticket), absl::OkStatus());
  table_.PopulateAhead();
  peer.view->PopulateAhead();
  EXPECT_EQ(table_.HoldsOf(peer.id), 1u);
  EXPECT_EQ(peer.view->References(ticket.slot), 1u);
  EXPECT_EQ(peer.view->References(ticket.slot + 1), 0u);
  peer.view->Release(ticket.slot);
}

TEST_F(ShareTableTest, AFreedBlockIsAFailedPrecondition) {
  Peer peer = NewPeer();
  const PoolTicket ticket = Share();
  table_.Withdraw(ticket.slot);
  const absl::Status status = peer.view->Acquire(ticket);
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("slot is empty"));
  EXPECT_THAT(status.message(), HasSubstr("and to keep the block"));
  EXPECT_FALSE(table_.Held(ticket.slot));
  EXPECT_EQ(peer.view->References(ticket.slot), 0u);
}

TEST_F(ShareTableTest, Pitfall29ARecycledSlotDoesNotResolveAnOldTicket) {
  Peer peer = NewPeer();
  const PoolTicket old_ticket = Share();
  table_.Withdraw(old_ticket.slot);
  table_.Recycle(old_ticket.slot);
  const PoolTicket new_ticket = Share();
  ASSERT_EQ(new_ticket.slot, old_ticket.slot);
  const absl::Status status = peer.view->Acquire(old_ticket);
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("another block's"));
  EXPECT_EQ(peer.view->Acquire(new_ticket), absl::OkStatus());
  // And while the new one is held, too.
  EXPECT_TRUE(absl::IsFailedPrecondition(peer.view->Acquire(old_ticket)));
  EXPECT_EQ(peer.view->References(new_ticket.slot), 1u);
  peer.view->Release(new_ticket.slot);
}

// Over so many recycles of a few slots, no ticket is taken for another.
TEST_F(ShareTableTest, StaleTicketsAreRefusedOverAMillionRecycles) {
  const std::uint64_t recycles =
      testing::HowMany("VMMSHARE_STALE_TICKETS", 1'000'000);
  Peer peer = NewPeer();
  std::vector<PoolTicket> shared;
  for (int i = 0; i < 4; ++i) shared.push_back(Share());
  std::uint64_t refused = 0, accepted = 0;
  for (std::uint64_t i = 0; i < recycles; ++i) {
    PoolTicket& current = shared[i * 7 % shared.size()];
    const PoolTicket stale = current;
    table_.Withdraw(current.slot);
    ASSERT_FALSE(table_.Held(current.slot));
    table_.Recycle(current.slot);
    current = Share(1 + i % 5, i, 512);
    ASSERT_EQ(current.slot, stale.slot);
    refused += absl::IsFailedPrecondition(peer.view->Acquire(stale));
    if (peer.view->Acquire(current).ok()) {
      ++accepted;
      peer.view->Release(current.slot);
    }
  }
  EXPECT_EQ(refused, recycles);
  EXPECT_EQ(accepted, recycles);
  EXPECT_EQ(table_.slots_in_use(), 4u);
}

TEST_F(ShareTableTest, ATicketThatContradictsTheRecordIsAnInvalidArgument) {
  Peer peer = NewPeer();
  const PoolTicket ticket = Share();
  std::vector<PoolTicket> wrong(3, ticket);
  wrong[0].segment ^= 1;
  wrong[1].offset ^= 256;
  wrong[2].size += 1;
  for (const bool held : {false, true}) {
    for (const PoolTicket& one : wrong) {
      const absl::Status status = peer.view->Acquire(one);
      EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
      EXPECT_EQ(peer.view->References(ticket.slot), held ? 1u : 0u);
      EXPECT_EQ(table_.HoldsOf(peer.id), held ? 1u : 0u);
    }
    if (!held) {
      ASSERT_EQ(peer.view->Acquire(ticket), absl::OkStatus());
    }
  }
  peer.view->Release(ticket.slot);
}

TEST_F(ShareTableTest, EveryFlippedBitOfATicketIsRefused) {
  Peer peer = NewPeer();
  const PoolTicketBytes good = EncodePoolTicket(Share());
  for (std::size_t bit = 0; bit < 8 * kPoolTicketBytes; ++bit) {
    PoolTicketBytes bytes = good;
    bytes[bit / 8] ^= static_cast<std::uint8_t>(1 << bit % 8);
    const auto ticket = DecodePoolTicket(bytes);
    if (ticket.ok()) {
      EXPECT_FALSE(peer.view->Acquire(*ticket).ok()) << "bit " << bit;
    }
  }
  EXPECT_EQ(table_.HoldsOf(peer.id), 0u);
}

TEST_F(ShareTableTest, ATicketThatNamesNothingIsAnInvalidArgument) {
  Peer peer = NewPeer();
  const PoolTicket ticket = Share();
  PoolTicket foreign = ticket;
  foreign.domain = Domain(8);
  const absl::Status status = peer.view->Acquire(foreign);
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(status.message(), HasSubstr("of another sharing domain"));
  PoolTicket outside = ticket;
  outside.slot = kPoolSlots;
  EXPECT_TRUE(absl::IsInvalidArgument(peer.view->Acquire(outside)));
  outside.slot = std::numeric_limits<std::uint32_t>::max();
  EXPECT_TRUE(absl::IsInvalidArgument(peer.view->Acquire(outside)));
  // The record of an empty slot is all zero; so is this ticket.
  PoolTicket nothing;
  nothing.domain = ticket.domain;
  nothing.slot = 99;
  EXPECT_TRUE(absl::IsInvalidArgument(peer.view->Acquire(nothing)));
}

TEST_F(ShareTableTest, ABlockHeldTwiceIsGivenBackByTheSecondRelease) {
  Peer peer = NewPeer();
  const PoolTicket ticket = Share();
  ASSERT_EQ(peer.view->Acquire(ticket), absl::OkStatus());
  ASSERT_EQ(peer.view->Acquire(ticket), absl::OkStatus());
  table_.Withdraw(ticket.slot);
  peer.view->Release(ticket.slot);
  EXPECT_TRUE(table_.Held(ticket.slot));
  peer.view->Release(ticket.slot);
  EXPECT_FALSE(table_.Held(ticket.slot));
  EXPECT_TRUE(absl::IsFailedPrecondition(peer.view->Acquire(ticket)));
}

TEST_F(ShareTableTest, ABlockThatWasFreedIsRefusedEvenToWhoHoldsIt) {
  Peer peer = NewPeer();
  const PoolTicket ticket = Share();
  ASSERT_EQ(peer.view->Acquire(ticket), absl::OkStatus());
  table_.Withdraw(ticket.slot);
  EXPECT_TRUE(absl::IsFailedPrecondition(peer.view->Acquire(ticket)));
  EXPECT_EQ(peer.view->References(ticket.slot), 1u);
  EXPECT_TRUE(table_.Held(ticket.slot)) << "the refusal gave nothing back";
  peer.view->Release(ticket.slot);
  EXPECT_FALSE(table_.Held(ticket.slot));
}

TEST_F(ShareTableTest, EachPeersHoldsCountUntilItIsRemoved) {
  Peer one = NewPeer();
  Peer two = NewPeer();
  const PoolTicket ticket = Share();
  ASSERT_EQ(one.view->Acquire(ticket), absl::OkStatus());
  ASSERT_EQ(two.view->Acquire(ticket), absl::OkStatus());
  table_.Withdraw(ticket.slot);
  one.view->Release(ticket.slot);
  EXPECT_TRUE(table_.Held(ticket.slot));
  // The second dies without giving it back.
  two.view.reset();
  EXPECT_TRUE(table_.Held(ticket.slot));
  EXPECT_EQ(table_.HoldsOf(two.id), 1u);
  table_.RemovePeer(two.id);
  EXPECT_FALSE(table_.Held(ticket.slot));
  EXPECT_EQ(table_.HoldsOf(one.id), 0u);
}

TEST_F(ShareTableTest, APeerThatComesLaterFindsWhatIsShared) {
  const PoolTicket before = Share();
  Peer peer = NewPeer();
  const PoolTicket after = Share();
  EXPECT_EQ(peer.view->Acquire(before), absl::OkStatus());
  EXPECT_EQ(peer.view->Acquire(after), absl::OkStatus());
  EXPECT_EQ(table_.HoldsOf(peer.id), 2u);
  peer.view->Release(before.slot);
  peer.view->Release(after.slot);
}

TEST_F(ShareTableTest, AllSlotsTakenIsResourceExhausted) {
  Peer peer = NewPeer();
  std::set<std::uint64_t> generations;
  PoolTicket last;
  for (std::uint32_t i = 0; i < kPoolSlots; ++i) {
    last = Share(1, i, 1);
    ASSERT_EQ(last.slot, i);
    if (i % 4096 == 0) generations.insert(last.generation);
  }
  EXPECT_EQ(generations.size(), kPoolSlots / 4096);
  const absl::Status status = table_.Publish(1, 0, 1).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(table_.slots_in_use(), kPoolSlots);
  ASSERT_EQ(peer.view->Acquire(last), absl::OkStatus());
  EXPECT_EQ(table_.HoldsOf(peer.id), 1u);
  peer.view->Release(last.slot);
  table_.Withdraw(5);
  // Withdrawn is not yet free.
  EXPECT_TRUE(absl::IsResourceExhausted(table_.Publish(1, 0, 1).status()));
  table_.Recycle(5);
  EXPECT_EQ(Share().slot, 5u);
}

TEST_F(ShareTableTest, AViewOfSomethingElseIsAnInvalidArgument) {
  const PeerId peer = Must(table_.AddPeer());
  const auto open = [&](const platform::OsHandle& table,
                        const platform::OsHandle& holds,
                        const DomainId& domain) {
    return SharedTableView::Open(table, holds, domain).status();
  };
  const auto& table = table_.table_handle();
  const auto& holds = table_.holds_handle(peer);
  EXPECT_TRUE(absl::IsInvalidArgument(open(holds, table, table_.domain())));
  EXPECT_TRUE(absl::IsInvalidArgument(open(table, table, table_.domain())));
  EXPECT_TRUE(absl::IsInvalidArgument(open(table, holds, Domain(9))));
  EXPECT_FALSE(open(platform::OsHandle(), holds, table_.domain()).ok());

  // Memory of the right size with another header.
  const SharedMemory forged =
      Must(SharedMemory::Create(kShareTableBytes, PeerAccess::kRead));
  EXPECT_TRUE(
      absl::IsInvalidArgument(open(forged.handle(), holds, table_.domain())));
  ShareHeader header = {kShareMagic, kShareVersion, kPoolSlots,
                        table_.domain().bytes};
  for (const std::uint32_t version :
       {kOldestShareVersion - 1, kShareVersion + 1}) {
    header.version = version;
    std::memcpy(forged.writable_bytes().data(), &header, sizeof(header));
    EXPECT_EQ(open(forged.handle(), holds, table_.domain()),
              absl::UnimplementedError(absl::StrCat(
                  "the owner's share table is of version ", version,
                  "; this vmmshare reads versions ", kOldestShareVersion,
                  " and ", kShareVersion,
                  ". Use the same release in the owner and in the importer")));
  }
  header.version = 0;
  std::memcpy(forged.writable_bytes().data(), &header, sizeof(header));
  EXPECT_TRUE(
      absl::IsInvalidArgument(open(forged.handle(), holds, table_.domain())));
  header.version = kShareVersion;
  header.slots = 2 * kPoolSlots;
  std::memcpy(forged.writable_bytes().data(), &header, sizeof(header));
  EXPECT_TRUE(
      absl::IsInvalidArgument(open(forged.handle(), holds, table_.domain())));
  header.slots = kPoolSlots;
  std::memcpy(forged.writable_bytes().data(), &header, sizeof(header));
  EXPECT_EQ(open(forged.handle(), holds, table_.domain()), absl::OkStatus());
  // All is right but the mark.
  for (char& c : header.magic) {
    ++c;
    std::memcpy(forged.writable_bytes().data(), &header, sizeof(header));
    const absl::Status other = open(forged.handle(), holds, table_.domain());
    EXPECT_TRUE(absl::IsInvalidArgument(other)) << other;
    EXPECT_THAT(other.message(), HasSubstr("is no share table"));
    --c;
  }
}

// A peer that says it holds everything pins blocks, and nothing else happens.
TEST_F(ShareTableTest, AHoldTableOfAnyBytesOnlyPins) {
  const PeerId hostile = Must(table_.AddPeer());
  const SharedMemory holds = Must(SharedMemory::Open(
      table_.holds_handle(hostile), kHoldTableBytes, PeerAccess::kReadWrite));
  std::memset(holds.writable_bytes().data(), 0xff, kHoldTableBytes);
  Peer honest = NewPeer();
  std::vector<PoolTicket> tickets;
  for (int i = 0; i < 100; ++i) tickets.push_back(Share());
  for (const PoolTicket& ticket : tickets) {
    EXPECT_EQ(honest.view->Acquire(ticket), absl::OkStatus());
    honest.view->Release(ticket.slot);
    table_.Withdraw(ticket.slot);
    EXPECT_TRUE(table_.Held(ticket.slot));
  }
  EXPECT_EQ(table_.HoldsOf(hostile), 100u);
  EXPECT_EQ(table_.HoldsOf(honest.id), 0u);
  table_.RemovePeer(hostile);
  for (const PoolTicket& ticket : tickets) {
    EXPECT_FALSE(table_.Held(ticket.slot));
    table_.Recycle(ticket.slot);
  }
  EXPECT_EQ(table_.slots_in_use(), 0u);
}

// A hostile owner: records of any bytes are accepted only where they equal the
// ticket, and never crash the peer.
TEST_F(ShareTableTest, AShareTableOfAnyBytesOnlyRefuses) {
  const SharedMemory forged =
      Must(SharedMemory::Create(kShareTableBytes, PeerAccess::kRead));
  const absl::Span<std::uint8_t> bytes = forged.writable_bytes();
  std::mt19937_64 numbers(11);
  for (std::size_t at = 0; at + 8 <= bytes.size(); at += 8) {
    const std::uint64_t number = numbers();
    std::memcpy(bytes.data() + at, &number, 8);
  }
  const ShareHeader header = {kShareMagic, kShareVersion, kPoolSlots,
                              table_.domain().bytes};
  std::memcpy(bytes.data(), &header, sizeof(header));
  const PeerId id = Must(table_.AddPeer());
  const auto view = Must(SharedTableView::Open(
      forged.handle(), table_.holds_handle(id), table_.domain()));
  PoolTicket ticket = Share(1, 0, 1);
  for (std::uint32_t i = 0; i < 20000; ++i) {
    ticket.slot = static_cast<std::uint32_t>(numbers() % kPoolSlots);
    ticket.generation = 1 + numbers() % 1000;
    EXPECT_FALSE(view->Acquire(ticket).ok());
  }
  // One that is right, at the end of everything: the owner's word is taken.
  std::uint64_t record[4];
  ticket.slot = kPoolSlots - 1;
  std::memcpy(record, bytes.data() + bytes.size() - 32, 32);
  ticket.generation = record[0];
  ticket.offset = record[1];
  ticket.size = record[2];
  ticket.segment = static_cast<std::uint32_t>(record[3]);
  EXPECT_EQ(view->Acquire(ticket), absl::OkStatus());
  // Changed while held: the new record is not taken for the old one.
  record[1] ^= kMax;
  std::memcpy(bytes.data() + bytes.size() - 32, record, 32);
  EXPECT_TRUE(absl::IsInvalidArgument(view->Acquire(ticket)));
  view->Release(ticket.slot);
}

using ShareTableDeathTest = ShareTableTest;

TEST_F(ShareTableDeathTest, StepsOutOfOrderEndTheProgram) {
  const PoolTicket ticket = Share();
  EXPECT_DEATH(table_.Recycle(ticket.slot), "Recycle.0. of a slot that is pub");
  EXPECT_DEATH(static_cast<void>(table_.Held(ticket.slot)), "is published");
  EXPECT_DEATH(table_.Withdraw(ticket.slot + 1), "is free");
  EXPECT_DEATH(Share(0), "no segment");
  EXPECT_DEATH(Share(1, kMax, 1), "64 bits");
  EXPECT_DEATH(Share(1, kMax - 511, 512), "64 bits");
  EXPECT_DEATH(Share(1, 0, 0), "no bytes");
  const auto generation_of = [this](std::uint32_t slot) {
    static_cast<void>(table_.GenerationOf(slot));
  };
  EXPECT_DEATH(generation_of(ticket.slot + 1), "GenerationOf.* that is free");
  table_.Withdraw(ticket.slot);
  EXPECT_DEATH(table_.Withdraw(ticket.slot), "is withdrawn");
  table_.Recycle(ticket.slot);
  EXPECT_DEATH(generation_of(ticket.slot), "GenerationOf.* that is free");
  EXPECT_DEATH(
      static_cast<void>(table_.HoldOf(ticket.slot, Must(table_.AddPeer()))),
      "HoldOf.* that is free");
  const PeerId peer = Must(table_.AddPeer());
  EXPECT_DEATH(static_cast<void>(table_.HoldOf(ticket.slot + 1, peer)),
               "HoldOf.* that is free");
  EXPECT_DEATH(table_.Recycle(ticket.slot), "is free");
  EXPECT_DEATH(table_.RemovePeer(PeerId{77}), "no such peer");
}

TEST_F(ShareTableDeathTest, AReleaseTooManyEndsTheProgram) {
  Peer peer = NewPeer();
  const PoolTicket ticket = Share();
  EXPECT_DEATH(peer.view->Release(ticket.slot), "is not held");
  EXPECT_DEATH(peer.view->Release(kPoolSlots), "Release.. of no slot");
  EXPECT_DEATH(static_cast<void>(peer.view->References(kPoolSlots)),
               "References.. of no slot");
  EXPECT_DEATH(static_cast<void>(peer.view->Holds(kPoolSlots, 1)),
               "Holds.. of no slot");
}

}  // namespace
}  // namespace vmm::pool
