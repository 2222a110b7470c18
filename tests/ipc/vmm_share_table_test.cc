// The share table between two processes: handles over a channel, then the race
// of freeing and importing, and a peer that dies with a block in its hands.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "platform/ipc/channel.h"
#include "platform/ipc/shared_memory.h"
#include "tests/support/child.h"
#include "tests/support/emulator.h"
#include "tests/support/must.h"
#include "tests/support/open_handles.h"
#include "tests/support/share_race.h"
#include "vmm/pool/internal/share_table.h"
#include "vmm/pool/internal/shared_table_view.h"

namespace vmm::pool {
namespace {

using platform::Channel;
using platform::Listener;
using platform::Message;
using platform::OsHandle;
using platform::PeerAccess;
using platform::SharedMemory;
using testing::Child;
using testing::Late;
using testing::Must;
using testing::RaceFigures;
using testing::RaceMemory;

DomainId Domain() {
  DomainId domain;
  domain.bytes.fill(6);
  return domain;
}

struct Session {
  Channel channel;
  std::unique_ptr<SharedTableView> view;
  SharedMemory race;
};

// The peer's end: dials `address` and opens what comes.
Session Join(const std::string& address) {
  Channel channel = Must(Channel::Connect(address, {}, Late()));
  Message message = Must(channel.Receive(Late()));
  platform::Check(message.handles.size() == 3, "three handles were sent");
  auto view = Must(
      SharedTableView::Open(message.handles[0], message.handles[1], Domain()));
  auto race = Must(SharedMemory::Open(message.handles[2], sizeof(RaceMemory),
                                      PeerAccess::kReadWrite));
  return {std::move(channel), std::move(view), std::move(race)};
}

RaceMemory& In(const SharedMemory& memory) {
  return *reinterpret_cast<RaceMemory*>(memory.writable_bytes().data());
}

int RaceAsPeer(const std::vector<std::string>& args) {
  Session session = Join(args[0]);
  platform::Mutex calls;
  const RaceFigures figures =
      testing::RacePeer(*session.view, In(session.race), calls);
  const std::uint64_t numbers[] = {figures.acquired, figures.refused,
                                   figures.broken};
  std::vector<std::uint8_t> payload(sizeof(numbers));
  std::memcpy(payload.data(), numbers, sizeof(numbers));
  Must(session.channel.Send(1, payload, {}, Late()));
  return 0;
}
const bool kRace = testing::RegisterChild("race_as_peer", &RaceAsPeer);

// Holds the block whose ticket comes, says so, and waits for its end.
int HoldAndStay(const std::vector<std::string>& args) {
  Session session = Join(args[0]);
  const Message message = Must(session.channel.Receive(Late()));
  Must(session.view->Acquire(Must(DecodePoolTicket(message.payload))));
  Must(session.channel.Send(1, {}, {}, Late()));
  // An error says that nobody came for this process.
  return session.channel.Receive(Late()).ok() ? 0 : 1;
}
const bool kHold = testing::RegisterChild("hold_and_stay", &HoldAndStay);

class ShareTableIpcTest : public ::testing::Test {
 protected:
  // Takes a peer in, as an owner does.
  Channel Admit(Listener& listener) {
    Channel channel = Must(listener.Accept(Late()));
    peer_ = Must(table_.AddPeer());
    const OsHandle* const handles[] = {
        &table_.table_handle(), &table_.holds_handle(peer_), &race_.handle()};
    Must(channel.Send(1, {}, handles, Late()));
    return channel;
  }

  testing::ExpectNoNewHandles no_new_handles_;
  ShareTable table_ = Must(ShareTable::Create(Domain()));
  SharedMemory race_ =
      Must(SharedMemory::Create(sizeof(RaceMemory), PeerAccess::kReadWrite));
  PeerId peer_{};
};

TEST_F(ShareTableIpcTest, ABlockThatAProcessHoldsIsNeverHandedOn) {
  if (testing::IsEmulated()) GTEST_SKIP() << testing::kEmulatorReorders;
  Listener listener = Must(Listener::Bind({}, {}));
  Child child = Child::Start("race_as_peer", {listener.address()});
  Channel channel = Admit(listener);
  const RaceFigures owner =
      testing::RaceOwner(table_, In(race_), testing::kRaceRounds);
  const Message message = Must(channel.Receive(Late()));
  std::uint64_t numbers[3];
  ASSERT_EQ(message.payload.size(), sizeof(numbers));
  std::memcpy(numbers, message.payload.data(), sizeof(numbers));
  RaceFigures peer;
  peer.acquired = numbers[0];
  peer.refused = numbers[1];
  peer.broken = numbers[2];
  testing::ExpectAFairRace(owner, peer);
  EXPECT_EQ(child.Wait(), 0);
}

TEST_F(ShareTableIpcTest, Pitfall26WhatADeadPeerHeldCountsUntilItIsRemoved) {
  Listener listener = Must(Listener::Bind({}, {}));
  Child child = Child::Start("hold_and_stay", {listener.address()});
  Channel channel = Admit(listener);
  const SlotRef ref = Must(table_.Publish(1, 0, 64));
  Must(channel.Send(
      1, EncodePoolTicket({Domain(), 1, ref.slot, ref.generation, 0, 64}), {},
      Late()));
  Must(channel.Receive(Late()).status());
  table_.Withdraw(ref.slot);
  EXPECT_TRUE(table_.Held(ref.slot));
  child.Kill();
  EXPECT_EQ(child.Wait(), Child::kKilled);
  EXPECT_TRUE(table_.Held(ref.slot));
  EXPECT_EQ(table_.HoldsOf(peer_), 1u);
  table_.RemovePeer(peer_);
  EXPECT_FALSE(table_.Held(ref.slot));
  table_.Recycle(ref.slot);
}

}  // namespace
}  // namespace vmm::pool
