// vmm/pool/internal/domain.h: what peers miss while they are on their way, and
// what they are sent then. No memory, and both sides in one process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "absl/time/clock.h"
#include "platform/ipc/channel.h"
#include "platform/ipc/lifeline.h"
#include "tests/support/must.h"
#include "tests/support/open_handles.h"
#include "vmm/pool/internal/domain.h"
#include "vmm/pool/internal/shared_table_view.h"

namespace vmm::pool {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::Must;

absl::Time Late() { return absl::Now() + absl::Seconds(20); }

class DomainTest : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kSize = 512;

  struct Subscriber {
    PeerId id{};
    std::unique_ptr<SharedTableView> view;
    std::pair<platform::Channel, platform::Channel> ends;
    platform::CancelEvent lags;
    platform::Channel* channel() { return &ends.first; }
  };
  platform::PeerWatch WatchOver(Subscriber& subscriber) {
    Must(platform::SendLifeline(subscriber.ends.second, Late()));
    return Must(platform::PeerWatch::Receive(subscriber.ends.first, Late()));
  }
  Subscriber Join() {
    Subscriber subscriber{PeerId{}, nullptr, Must(platform::Channel::Pair()),
                          Must(platform::CancelEvent::Create())};
    platform::PeerWatch watch = WatchOver(subscriber);
    subscriber.id =
        Must(domain_.Join(subscriber.channel()->peer(), std::move(watch)));
    const Welcome welcome = Must(domain_.WelcomeFor(subscriber.id));
    subscriber.view =
        Must(SharedTableView::Open(welcome.table, welcome.holds, domain_.id()));
    return subscriber;
  }
  std::vector<Notice> MissingOf(Subscriber& subscriber) {
    return domain_.Missing(subscriber.id, subscriber.channel(),
                           &subscriber.lags);
  }
  // Blocks side by side, which a peer then holds.
  std::vector<RecalledSlot> Hold(SharedTableView& view, std::size_t count) {
    std::vector<RecalledSlot> held;
    for (std::size_t i = 0; i < count; ++i) {
      const SlotRef block = Must(domain_.Publish(segment_, i * kSize, kSize));
      Must(view.Acquire(PoolTicket{domain_.id(), segment_.number, block.slot,
                                   block.generation, i * kSize, kSize}));
      held.push_back(
          {segment_.number, block.slot, block.generation, i * kSize, kSize});
    }
    return held;
  }
  std::shared_ptr<SharedSegment> MakeShared(std::uint32_t number) {
    auto shared = std::make_shared<SharedSegment>();
    shared->number = number;
    return shared;
  }

  DomainTest() { segment_.number = 1; }

  testing::ExpectNoNewHandles no_new_handles_;
  Segment segment_{1 << 20};
  Domain domain_;
};

TEST_F(DomainTest, WithoutTicketsNothingIsLeased) {
  EXPECT_FALSE(domain_.IsAnyLeased());
  EXPECT_FALSE(domain_.IsLeased({0, 1}));
  EXPECT_EQ(domain_.tickets(), 0u);
}

TEST_F(DomainTest, WhatWasSharedStaysSharedOnceItIsServed) {
  domain_.AddShared(MakeShared(1));
  domain_.StopSharing();
  EXPECT_FALSE(domain_.IsShared(segment_));
  domain_.AddShared(MakeShared(1));
  Must(domain_.Serve());
  domain_.StopSharing();
  EXPECT_TRUE(domain_.IsShared(segment_));
}

TEST_F(DomainTest, WhoIsNotThereYetIsRecalledFromWhenItIs) {
  Must(domain_.Serve());
  Subscriber subscriber = Join();
  const std::vector<RecalledSlot> held =
      Hold(*subscriber.view, kMaxRecalled + 1);
  absl::Status error;
  domain_.Recall(held, absl::Now() + absl::Minutes(1), &error);
  EXPECT_EQ(error, absl::OkStatus());
  EXPECT_TRUE(domain_.IsLeased({held[0].slot, held[0].generation}));
  const std::vector<Notice> missing = MissingOf(subscriber);
  ASSERT_EQ(missing.size(), 2u);
  std::vector<std::uint32_t> slots;
  for (const Notice& notice : missing) {
    const auto& recall = std::get<RecallBlocks>(notice);
    EXPECT_GT(recall.within, absl::Seconds(1));
    EXPECT_LE(recall.within, absl::Minutes(1));
    EXPECT_LE(recall.blocks.size(), kMaxRecalled);
    for (const RecalledSlot& block : recall.blocks) slots.push_back(block.slot);
  }
  ASSERT_EQ(slots.size(), held.size());
  for (std::size_t i = 0; i < held.size(); ++i) {
    EXPECT_EQ(slots[i], held[i].slot);
  }
  EXPECT_THAT(MissingOf(subscriber), IsEmpty());
  // It is there: from now on it is told at once.
  domain_.Recall(absl::MakeConstSpan(held).first(1), absl::Now(), &error);
  EXPECT_EQ(error, absl::OkStatus());
  const Notice told =
      Must(ReceiveNotice(subscriber.ends.second, Late(), nullptr));
  EXPECT_EQ(std::get<RecallBlocks>(told).blocks[0].slot, held[0].slot);
}

TEST_F(DomainTest, ASegmentThatWentWhileItWasOnItsWayIsForgotten) {
  domain_.AddShared(MakeShared(1));
  domain_.AddShared(MakeShared(2));
  Must(domain_.Serve());
  Subscriber subscriber = Join();
  EXPECT_EQ(MissingOf(subscriber).size(), 2u);
  absl::Status error;
  domain_.Forget(1, &error);
  domain_.Forget(3, &error);  // No such segment.
  const std::vector<Notice> missing = MissingOf(subscriber);
  ASSERT_EQ(missing.size(), 1u);
  EXPECT_EQ(std::get<ForgetSegment>(missing[0]).number, 1u);
  EXPECT_THAT(MissingOf(subscriber), IsEmpty());
  EXPECT_EQ(error, absl::OkStatus());
}

TEST_F(DomainTest, WhoComesWhileItEndsIsToldOnceAndLaterNobodyJoins) {
  Must(domain_.Serve());
  Subscriber subscriber = Join();
  domain_.Close();
  const std::vector<Notice> missing = MissingOf(subscriber);
  ASSERT_EQ(missing.size(), 1u);
  EXPECT_TRUE(std::holds_alternative<Closed>(missing[0]));
  EXPECT_THAT(MissingOf(subscriber), IsEmpty());
  platform::PeerWatch watch = WatchOver(subscriber);
  const absl::Status late =
      domain_.Join(subscriber.channel()->peer(), std::move(watch)).status();
  EXPECT_TRUE(absl::IsNotFound(late)) << late;
  EXPECT_THAT(late.message(), HasSubstr("the pool has ended"));
}

TEST_F(DomainTest, WhatIsHeldByWhoHungUpIsInQuarantine) {
  Must(domain_.Serve());
  Subscriber stays = Join();
  Subscriber leaves = Join();
  const std::uint32_t slot = Hold(*leaves.view, 1).front().slot;
  EXPECT_FALSE(domain_.IsQuarantined(slot));
  domain_.Leave(leaves.id, /*said_goodbye=*/false);
  EXPECT_TRUE(domain_.IsQuarantined(slot));
  EXPECT_TRUE(domain_.HasPeersThatLeft());
  ASSERT_EQ(domain_.LeasesOf(slot, kSize).size(), 1u);
  EXPECT_EQ(domain_.connected_peers(), 1u);
  // It is asked for nothing any more.
  absl::Status error;
  domain_.Recall({{1, slot, 1, 0, kSize}}, absl::Now(), &error);
  EXPECT_THAT(MissingOf(stays), IsEmpty());
  EXPECT_EQ(error, absl::OkStatus());
  domain_.Leave(stays.id, /*said_goodbye=*/true);
  EXPECT_TRUE(domain_.has_peers());
}

}  // namespace
}  // namespace vmm::pool
