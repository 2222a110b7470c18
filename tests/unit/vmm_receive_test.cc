// ReceiveAll() against a sender that does what it likes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tests/support/open_handles.h"
#include "tests/unit/vmm_protocol_samples.h"
#include "tests/unit/vmm_ticket_samples.h"
#include "vmm/share/internal/protocol.h"

namespace vmm::protocol {
namespace {

using testing::CountPayload;
using testing::ErrorPayload;
using ::testing::HasSubstr;
using testing::Late;
using testing::Must;
using testing::PartPayload;
using testing::PartText;
using testing::RawPeer;
using testing::TicketOfChunks;
using Bytes = std::vector<std::uint8_t>;

// What a sender may have done so far.
class ReceiveAllTest : public testing::HandlesCheckedTest {
 protected:
  // Runs the receiver on what the sender has sent.
  absl::Status Receive(absl::Time deadline = Late()) {
    const auto received = ReceiveAll(
        receiver_,
        [this](Incoming incoming) -> absl::Status {
          if (imported_.size() == refuse_at_) {
            ++refused_;
            return absl::ResourceExhaustedError("no room here");
          }
          imported_.push_back(std::move(incoming));
          return absl::OkStatus();
        },
        deadline);
    if (received.ok()) {
      EXPECT_EQ(*received, imported_.size());
    }
    return received.status();
  }

  // The receiver must find the sender's bytes bad, and hang up.
  void ExpectBroken(const std::string& words) {
    const absl::Status status = Receive();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(words));
    EXPECT_THAT(std::string(status.message()), HasSubstr("broke the protocol"));
    EXPECT_FALSE(receiver_.is_open());
    EXPECT_TRUE(sender_.HearsHangUp());
  }

  // Another exchange works: both ends agree on what comes next.
  void ExpectInStep() {
    ASSERT_TRUE(receiver_.is_open());
    imported_.clear();
    refuse_at_ = ~std::size_t{0};
    sender_.Begin(1);
    sender_.Part({{TicketOfChunks(1)}}, 1);
    EXPECT_TRUE(Receive().ok());
    EXPECT_EQ(imported_.size(), 1u);
    EXPECT_EQ(Must(sender_.Receive()).type, kDone);
  }

  void ExpectDone(std::uint32_t count) {
    const platform::Message word = Must(sender_.Receive());
    EXPECT_EQ(word.type, kDone);
    EXPECT_EQ(word.payload, CountPayload(count));
    EXPECT_TRUE(word.handles.empty());
  }

  std::pair<platform::Channel, platform::Channel> ends_ =
      Must(platform::Channel::Pair());
  RawPeer sender_{std::move(ends_.first)};
  platform::Channel receiver_ = std::move(ends_.second);
  std::vector<Incoming> imported_;
  std::size_t refuse_at_ = ~std::size_t{0};
  int refused_ = 0;
};

// Before it takes a handle: a ticket may state 65,536 of them.
TEST_F(ReceiveAllTest, ATicketThatIsNotExpectedEndsItWhenItComes) {
  sender_.Begin(1);
  sender_.Part({{TicketOfChunks(40)}}, 16);
  bool in_step = true;
  const absl::Status status =
      TryReceiveAll(
          receiver_, [](const Incoming&) { return absl::OkStatus(); }, Late(),
          &in_step, nullptr, kMaxAllocations,
          [](const Ticket& ticket) -> absl::Status {
            return ticket == TicketOfChunks(1)
                       ? absl::OkStatus()
                       : absl::DataLossError("not asked for");
          })
          .status();
  EXPECT_EQ(status, absl::DataLossError("not asked for"));
  EXPECT_FALSE(in_step);
}

TEST_F(ReceiveAllTest, TakesOneAllocationOfOneChunk) {
  sender_.Begin(1);
  sender_.Part({{TicketOfChunks(1)}}, 1);
  EXPECT_TRUE(Receive().ok());
  ASSERT_EQ(imported_.size(), 1u);
  EXPECT_EQ(imported_[0].ticket, TicketOfChunks(1));
  EXPECT_EQ(imported_[0].handles.size(), 1u);
  ExpectDone(1);
  ExpectInStep();
}

TEST_F(ReceiveAllTest, TakesManyInOnePartInTheOrderSent) {
  sender_.Begin(3);
  sender_.Part({{TicketOfChunks(2), TicketOfChunks(1), TicketOfChunks(3)}}, 6);
  EXPECT_TRUE(Receive().ok());
  ASSERT_EQ(imported_.size(), 3u);
  EXPECT_EQ(imported_[0].handles.size(), 2u);
  EXPECT_EQ(imported_[1].handles.size(), 1u);
  EXPECT_EQ(imported_[2].handles.size(), 3u);
  ExpectDone(3);
}

TEST_F(ReceiveAllTest, TakesHandlesThatFollowTheirTicketInLaterParts) {
  sender_.Begin(2);
  sender_.Part({{TicketOfChunks(20)}}, 16);
  sender_.Part({{TicketOfChunks(1)}}, 4);
  sender_.Part({}, 1);
  EXPECT_TRUE(Receive().ok());
  ASSERT_EQ(imported_.size(), 2u);
  EXPECT_EQ(imported_[0].handles.size(), 20u);
  ExpectDone(2);
}

TEST_F(ReceiveAllTest, TakesFabricHandlesAsBytes) {
  sender_.Begin(1);
  sender_.Part({{TicketOfChunks(2, HandleKind::kFabric)}, 2}, 0);
  EXPECT_TRUE(Receive().ok());
  ASSERT_EQ(imported_.size(), 1u);
  ASSERT_EQ(imported_[0].handles.size(), 2u);
  fabric::Handle second;
  second.bytes.fill(2);
  EXPECT_EQ(std::get<fabric::Handle>(imported_[0].handles[1]), second);
}

TEST_F(ReceiveAllTest, TakesLegacyHandlesAsBytes) {
  sender_.Begin(1);
  sender_.Part({{TicketOfChunks(1, HandleKind::kLegacyIpc)}, 1}, 0);
  EXPECT_TRUE(Receive().ok());
  ASSERT_EQ(imported_.size(), 1u);
  LegacyHandle first;
  first.bytes.fill(1);
  EXPECT_EQ(std::get<LegacyHandle>(imported_[0].handles[0]), first);
}

TEST_F(ReceiveAllTest, PutsAPoolsHandleTogetherOfItsTwoParts) {
  sender_.Begin(1);
  sender_.Part({{TicketOfChunks(1, HandleKind::kStreamPool)}, 1}, 1);
  EXPECT_TRUE(Receive().ok());
  ASSERT_EQ(imported_.size(), 1u);
  const auto& handle = std::get<StreamPoolHandle>(imported_[0].handles[0]);
  EXPECT_TRUE(handle.pool.has_value());
  EXPECT_EQ(handle.pointer[0], 1);
}

TEST_F(ReceiveAllTest, ClosesOnAPoolsHandleWithoutItsDescriptor) {
  sender_.Begin(1);
  sender_.Part({{TicketOfChunks(1, HandleKind::kStreamPool)}, 1}, 0);
  ExpectBroken("another kind than its ticket says");
}

TEST_F(ReceiveAllTest, ClosesOnAPoolsHandleWithTwoDescriptors) {
  sender_.Begin(1);
  sender_.Part({{TicketOfChunks(1, HandleKind::kStreamPool)}, 1}, 2);
  ExpectBroken("another kind than its ticket says");
}

TEST_F(ReceiveAllTest, ClosesOnADescriptorWhereALegacyHandleBelongs) {
  sender_.Begin(1);
  sender_.Part({{TicketOfChunks(1, HandleKind::kLegacyIpc)}}, 1);
  ExpectBroken("another kind than its ticket says");
}

TEST_F(ReceiveAllTest, HandsOverEachAllocationAsSoonAsItIsComplete) {
  sender_.Begin(2);
  sender_.Part({{TicketOfChunks(1), TicketOfChunks(1)}}, 1);
  sender_.channel().Close();
  EXPECT_TRUE(absl::IsUnavailable(Receive()));
  EXPECT_EQ(imported_.size(), 1u);
}

TEST_F(ReceiveAllTest, ClosesOnABeginOfNoneOrTooMany) {
  for (std::uint32_t count : {0u, 65537u, 0x80000000u, 0xffffffffu}) {
    auto [a, b] = Must(platform::Channel::Pair());
    sender_.channel() = std::move(a);
    receiver_ = std::move(b);
    sender_.Begin(count);
    ExpectBroken(absl::StrCat("began with ", count, " allocations"));
  }
}

TEST_F(ReceiveAllTest, ClosesOnABeginOfAWrongLengthOrWithAHandle) {
  for (std::size_t size : {0, 1, 3, 5, 8, 1000}) {
    auto [a, b] = Must(platform::Channel::Pair());
    sender_.channel() = std::move(a);
    receiver_ = std::move(b);
    sender_.Send(kBegin, Bytes(size, 1));
    ExpectBroken("it began with");
  }
  auto [a, b] = Must(platform::Channel::Pair());
  sender_.channel() = std::move(a);
  receiver_ = std::move(b);
  sender_.Send(kBegin, CountPayload(1), 1);
  ExpectBroken("it began with");
}

TEST_F(ReceiveAllTest, ClosesOnMoreTicketsThanStated) {
  sender_.Begin(1);
  sender_.Part({{TicketOfChunks(1), TicketOfChunks(1)}}, 1);
  ExpectBroken("more tickets than stated");
  EXPECT_TRUE(imported_.empty());
}

TEST_F(ReceiveAllTest, ClosesOnAnotherTicketOnceAllHaveBeenNamed) {
  sender_.Begin(2);
  sender_.Part({{TicketOfChunks(1), TicketOfChunks(2)}}, 2);
  sender_.Part({{TicketOfChunks(1)}}, 1);
  ExpectBroken("more tickets than stated");
}

TEST_F(ReceiveAllTest, ClosesOnMoreHandlesThanStated) {
  sender_.Begin(1);
  sender_.Part({{TicketOfChunks(1)}}, 2);
  ExpectBroken("more handles than stated");
}

TEST_F(ReceiveAllTest, ClosesOnAHandleThatComesBeforeItsTicket) {
  sender_.Begin(1);
  sender_.Part({}, 1);
  ExpectBroken("more handles than stated");
}

TEST_F(ReceiveAllTest, ClosesOnADescriptorWhereAFabricHandleBelongs) {
  sender_.Begin(1);
  sender_.Part({{TicketOfChunks(1, HandleKind::kFabric)}}, 1);
  ExpectBroken("another kind than its ticket says");
}

TEST_F(ReceiveAllTest, ClosesOnAFabricHandleWhereADescriptorBelongs) {
  sender_.Begin(1);
  sender_.Part({{TicketOfChunks(1)}, 1}, 0);
  ExpectBroken("another kind than its ticket says");
}

TEST_F(ReceiveAllTest, ClosesOnAPartThatStatesOtherNumbersThanItHolds) {
  for (const PartText& part :
       {PartText{{TicketOfChunks(1)}, 0, 0, 0},
        PartText{{TicketOfChunks(1)}, 0, 2, 0},
        PartText{{TicketOfChunks(1)}, 0, 65535, 65535},
        PartText{{TicketOfChunks(1)}, 0, 1, 3},  // 3 * 64 == 192.
        PartText{{TicketOfChunks(1)}, 1, 1, 0}, PartText{{}, 0, 1, 0}}) {
    auto [a, b] = Must(platform::Channel::Pair());
    sender_.channel() = std::move(a);
    receiver_ = std::move(b);
    sender_.Begin(1);
    sender_.Part(part, 1);
    ExpectBroken("stated in");
  }
}

TEST_F(ReceiveAllTest, ClosesOnAPartCutAtAnyByte) {
  const Bytes whole = PartPayload({{TicketOfChunks(1)}});
  for (std::size_t size = 0; size < whole.size(); ++size) {
    auto [a, b] = Must(platform::Channel::Pair());
    sender_.channel() = std::move(a);
    receiver_ = std::move(b);
    sender_.Begin(1);
    sender_.Send(kPart, Bytes(whole.begin(), whole.begin() + size), 1);
    ExpectBroken("stated in");
  }
}

TEST_F(ReceiveAllTest, ClosesOnAPartWithAnyBitOfItsTicketFlipped) {
  Bytes payload = PartPayload({{TicketOfChunks(1)}});
  for (std::size_t bit = 4 * 8; bit < payload.size() * 8; bit += 11) {
    auto [a, b] = Must(platform::Channel::Pair());
    sender_.channel() = std::move(a);
    receiver_ = std::move(b);
    payload[bit / 8] ^= static_cast<std::uint8_t>(1 << bit % 8);
    sender_.Begin(1);
    sender_.Send(kPart, payload, 1);
    if (bit / 8 == 12 || bit / 8 == 13) {  // A newer version of tickets.
      EXPECT_TRUE(absl::IsUnimplemented(Receive()));
      EXPECT_FALSE(receiver_.is_open());
    } else {
      ExpectBroken("ticket");
    }
    payload[bit / 8] ^= static_cast<std::uint8_t>(1 << bit % 8);
  }
}

TEST_F(ReceiveAllTest, ClosesOnAPartWithoutAHandle) {
  sender_.Begin(1);
  sender_.Part({{TicketOfChunks(1)}}, 0);
  ExpectBroken("a part without a handle");
}

TEST_F(ReceiveAllTest, ClosesOnAnyOtherMessageInPlaceOfTheBegin) {
  for (std::uint16_t type :
       {std::uint16_t{0}, std::uint16_t{1}, static_cast<std::uint16_t>(kPart),
        static_cast<std::uint16_t>(kDone), static_cast<std::uint16_t>(kRefused),
        static_cast<std::uint16_t>(kOpen), std::uint16_t{0xffff}}) {
    auto [a, b] = Must(platform::Channel::Pair());
    sender_.channel() = std::move(a);
    receiver_ = std::move(b);
    sender_.Send(type, CountPayload(1));
    ExpectBroken("was expected");
  }
}

TEST_F(ReceiveAllTest, ClosesOnAnyOtherMessageInPlaceOfAPart) {
  for (std::uint16_t type :
       {std::uint16_t{0}, static_cast<std::uint16_t>(kBegin),
        static_cast<std::uint16_t>(kDone), static_cast<std::uint16_t>(kRefused),
        static_cast<std::uint16_t>(kOpen), std::uint16_t{0xf007}}) {
    auto [a, b] = Must(platform::Channel::Pair());
    sender_.channel() = std::move(a);
    receiver_ = std::move(b);
    sender_.Begin(2);
    sender_.Part({{TicketOfChunks(1)}}, 1);
    sender_.Send(type, CountPayload(1));
    ExpectBroken("was expected");
  }
}

TEST_F(ReceiveAllTest, AnAbortInEveryPlaceIsToldAndLeavesTheChannelInStep) {
  const std::vector<std::function<void()>> steps = {
      [&] { sender_.Begin(2); },
      [&] { sender_.Part({{TicketOfChunks(20)}}, 16); },
      [&] { sender_.Part({{TicketOfChunks(1)}}, 4); },
  };
  for (std::size_t before = 0; before <= steps.size(); ++before) {
    for (std::size_t i = 0; i < before; ++i) steps[i]();
    sender_.Send(kAbort, ErrorPayload(8, "the export failed"));
    const absl::Status status = Receive();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << before;
    EXPECT_EQ(status.message(), "the owner refused: the export failed");
    EXPECT_TRUE(sender_.HearsNothing()) << "an abort has no answer";
    ExpectInStep();
    imported_.clear();
  }
}

TEST_F(ReceiveAllTest, AnAbortThatCannotBeReadStillEndsTheExchange) {
  sender_.Begin(1);
  sender_.Send(kAbort, {});
  EXPECT_TRUE(absl::IsDataLoss(Receive()));
  ExpectInStep();
}

TEST_F(ReceiveAllTest, SilenceBeforeTheBeginLeavesTheChannelUsable) {
  EXPECT_TRUE(
      absl::IsDeadlineExceeded(Receive(absl::Now() + absl::Milliseconds(20))));
  ExpectInStep();
}

TEST_F(ReceiveAllTest, SilenceAfterTheBeginClosesTheChannel) {
  sender_.Begin(1);
  EXPECT_TRUE(
      absl::IsDeadlineExceeded(Receive(absl::Now() + absl::Milliseconds(20))));
  EXPECT_FALSE(receiver_.is_open());
  EXPECT_TRUE(sender_.HearsHangUp());
}

TEST_F(ReceiveAllTest, SilenceAmongThePartsClosesTheChannelAndTheHandles) {
  sender_.Begin(1);
  sender_.Part({{TicketOfChunks(20)}}, 16);
  EXPECT_TRUE(
      absl::IsDeadlineExceeded(Receive(absl::Now() + absl::Milliseconds(20))));
  EXPECT_FALSE(receiver_.is_open());
  EXPECT_TRUE(imported_.empty());
}

TEST_F(ReceiveAllTest, AHangUpInEveryPlaceIsTold) {
  const std::vector<std::function<void()>> steps = {
      [&] { sender_.Begin(2); },
      [&] { sender_.Part({{TicketOfChunks(20)}}, 16); },
      [&] { sender_.Part({{TicketOfChunks(1)}}, 4); },
  };
  for (std::size_t before = 0; before <= steps.size(); ++before) {
    auto [a, b] = Must(platform::Channel::Pair());
    sender_.channel() = std::move(a);
    receiver_ = std::move(b);
    for (std::size_t i = 0; i < before; ++i) steps[i]();
    sender_.channel().Close();
    const absl::Status status = Receive();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << before;
    EXPECT_FALSE(receiver_.is_open());
    imported_.clear();
  }
}

TEST_F(ReceiveAllTest, ARefusalIsToldToTheSenderAndLeavesTheChannelInStep) {
  refuse_at_ = 1;
  sender_.Begin(4);
  sender_.Part({{TicketOfChunks(1), TicketOfChunks(1), TicketOfChunks(20)}},
               16);
  sender_.Part({{TicketOfChunks(1)}}, 6);
  sender_.Part({}, 1);
  const absl::Status status = Receive();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(refused_, 1) << "nothing is imported after the first refusal";
  EXPECT_EQ(imported_.size(), 1u);
  const platform::Message word = Must(sender_.Receive());
  EXPECT_EQ(word.type, kRefused);
  EXPECT_EQ(DecodeError(word.payload, "the importer").message(),
            "the importer refused: no room here");
  ExpectInStep();
}

// It is taken for the word that nothing is kept.
TEST_F(ReceiveAllTest, NothingIsToldWhileWhatCameIsLetGoOf) {
  sender_.Begin(2);
  sender_.Part({{TicketOfChunks(1), TicketOfChunks(1)}}, 2);
  const absl::Status status =
      ReceiveAll(
          receiver_,
          [this](Incoming incoming) -> absl::Status {
            imported_.push_back(std::move(incoming));
            if (imported_.size() == 1) return absl::OkStatus();
            imported_.clear();
            EXPECT_TRUE(absl::IsDeadlineExceeded(
                sender_.channel().Receive(absl::InfinitePast()).status()));
            return absl::ResourceExhaustedError("no room here");
          },
          Late())
          .status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(Must(sender_.Receive()).type, kRefused);
  ExpectInStep();
}

TEST_F(ReceiveAllTest, ASenderThatDiesAfterTheLastPartDoesNoHarm) {
  sender_.Begin(1);
  sender_.Part({{TicketOfChunks(1)}}, 1);
  sender_.channel().Close();
  EXPECT_TRUE(Receive().ok()) << "the memory is here";
  EXPECT_EQ(imported_.size(), 1u);
}

TEST_F(ReceiveAllTest, HoldsNoMoreThanOneMessagesHandlesOfWhatItRefuses) {
  refuse_at_ = 0;
  sender_.Begin(2);
  sender_.Part({{TicketOfChunks(1), TicketOfChunks(320)}}, 16);
  for (int i = 0; i < 3; ++i) sender_.Part({}, 16);
  const std::size_t before = testing::OpenHandles().size();
  // The rest never comes; what came is refused and must be closed already when
  // the receiver waits.
  EXPECT_TRUE(
      absl::IsDeadlineExceeded(Receive(absl::Now() + absl::Milliseconds(20))));
  EXPECT_LE(testing::OpenHandles().size(), before);
}

}  // namespace
}  // namespace vmm::protocol
