// An owner of a pool that lies, for tests of its subscribers.
#ifndef VMMSHARE_TESTS_IPC_HOSTILE_OWNER_H_
#define VMMSHARE_TESTS_IPC_HOSTILE_OWNER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "platform/ipc/lifeline.h"
#include "tests/ipc/ask.h"
#include "tests/ipc/pool_ipc_test.h"
#include "vmm/pool/internal/share_protocol.h"
#include "vmm/pool/internal/share_table.h"
#include "vmm/pool/internal/subscription.h"
#include "vmm/share/internal/protocol.h"

namespace vmm::testing {

// Speaks the owner's part by hand, from a thread of this process.
class HostileOwner : public PoolIpcTest {
 protected:
  using Play =
      std::function<void(platform::Channel&, pool::ShareTable&, pool::PeerId)>;

  void SetUp() override {
    PoolIpcTest::SetUp();
    domain_.bytes.fill(7);
  }
  void TearDown() override {
    if (owner_.joinable()) owner_.join();
    signals_.clear();
  }

  // Takes one subscriber, and then says what `play` does.
  std::string Start(Play play) {
    owner_ = std::thread([this, play = std::move(play)] {
      platform::Channel channel = Must(listener().Accept(Late()));
      Must(platform::ReceiveLifeline(channel, Late()));
      EXPECT_TRUE(protocol::DecodeOpen(Must(channel.Receive(Late()))).ok());
      Must(protocol::SendGranted(channel, Access::kReadWrite, Late()));
      pool::ShareTable table = Must(pool::ShareTable::Create(domain_));
      const pool::PeerId peer = Must(table.AddPeer());
      play(channel, table, peer);
      channel.WaitForHangUp(Late()).IgnoreError();
    });
    return FormatPoolString(
        {domain_, {ShareKey(), Access::kReadWrite, address()}});
  }
  // Waits in `play` for GoOn(). The connection stays: a client may hear of a
  // hang-up in the middle of connecting.
  void AwaitGoOn() { signals_.push_back(Must(listener().Accept(Late()))); }
  platform::Channel GoOn() {
    return Must(platform::Channel::Connect(address(), {}, Late()));
  }
  static void Welcome(platform::Channel& channel, pool::ShareTable& table,
                      pool::PeerId peer) {
    Must(
        pool::SendWelcome(channel,
                          {Must(platform::Duplicate(table.table_handle())),
                           Must(platform::Duplicate(table.holds_handle(peer)))},
                          Late()));
  }
  Allocation HostMemory() {
    return Must(Allocation::Create(
        device, {.size = kGranule,
                 .host_numa_node = 0,
                 .also = {{Location::HostNuma(0), Access::kReadWrite}}}));
  }
  // Memory of one granule as segment `number`.
  pool::Notice SegmentOf(const Allocation& memory, std::uint32_t number,
                         const pool::SegmentPlace& place = {}) {
    protocol::Outgoing outgoing =
        Must(protocol::MakeOutgoing(memory.shareable()));
    auto segment = std::make_shared<pool::SharedSegment>();
    segment->number = number;
    segment->place = place;
    segment->handle = Must(outgoing.handle(0));
    segment->ticket = std::move(outgoing.ticket);
    return pool::Notice(
        std::shared_ptr<const pool::SharedSegment>(std::move(segment)));
  }
  absl::StatusOr<std::unique_ptr<ImportedPool>> Dial(const std::string& text) {
    return ImportedPool::Subscribe(driver(), text, {}, Late());
  }
  // As for fences: what is forgotten and was used stays.
  std::unique_ptr<pool::Subscription> SubscribeAndKeep(
      const std::string& text) {
    platform::Channel channel =
        Must(platform::Channel::Connect(address(), {}, Late()));
    AskAndBeGranted(channel, text);
    const pool::Welcome welcome = Must(pool::ReceiveWelcome(channel, Late()));
    std::unique_ptr<pool::Subscription> pool = Must(
        pool::Subscription::Start(driver(), std::move(channel),
                                  Must(pool::SharedTableView::Open(
                                      welcome.table, welcome.holds, domain_)),
                                  {}));
    pool->KeepWhatIsForgotten();
    return pool;
  }
  PoolTicket TicketOf(const pool::SlotRef& slot, std::uint32_t segment,
                      std::uint64_t offset, std::uint64_t size) {
    return {domain_, segment, slot.slot, slot.generation, offset, size};
  }

  DomainId domain_;
  std::vector<platform::Channel> signals_;  // The owner's until it is joined.
  std::thread owner_;
};

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_IPC_HOSTILE_OWNER_H_
