// What a pool's owner and its subscribers send each other: the bytes that
// docs/wire_format.md says, and nothing else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/escaping.h"
#include "platform/ipc/channel.h"
#include "tests/support/must.h"
#include "tests/unit/vmm_ticket_samples.h"
#include "vmm/memory/internal/wire.h"
#include "vmm/pool/internal/pool_string.h"
#include "vmm/pool/internal/share_layout.h"
#include "vmm/pool/internal/share_protocol.h"
#include "vmm/share/internal/protocol.h"

namespace vmm::pool {
namespace {

using platform::Channel;
using platform::Message;
using ::testing::HasSubstr;
using testing::Late;
using testing::Must;
using Bytes = std::vector<std::uint8_t>;
using Code = absl::StatusCode;

std::string Hex(const Bytes& bytes) {
  return absl::BytesToHexString(absl::string_view(
      reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

DomainId Domain() {
  DomainId domain;
  for (std::uint8_t i = 0; i < 16; ++i) {
    domain.bytes[i] = static_cast<std::uint8_t>(0xa0 + i);
  }
  return domain;
}

class ShareProtocol : public ::testing::Test {
 protected:
  Message Sent() { return Must(ends_.second.Receive(Late())); }
  Channel& sender() { return ends_.first; }
  Channel& receiver() { return ends_.second; }
  const platform::OsHandle& handle() const { return event_.handle(); }

  // As it comes, with `handles` handles.
  Message MessageOf(std::uint16_t type, const Bytes& payload,
                    std::size_t handles) {
    Message message;
    message.type = type;
    message.payload = payload;
    for (std::size_t i = 0; i < handles; ++i) {
      message.handles.push_back(Must(platform::Duplicate(handle())));
    }
    return message;
  }
  Notice SegmentOf(const Ticket& ticket) {
    auto segment = std::make_shared<SharedSegment>();
    segment->number = 0x01020304;
    segment->ticket = ticket;
    if (ticket.kind == HandleKind::kFabric) {
      fabric::Handle bytes;
      bytes.bytes.fill(0x5a);
      segment->handle = bytes;
    } else {
      segment->handle = Must(platform::Duplicate(handle()));
    }
    return Notice(std::shared_ptr<const SharedSegment>(std::move(segment)));
  }
  void ExpectNoNotice(std::uint16_t type, const Bytes& payload,
                      std::size_t handles) {
    const absl::Status status =
        DecodeNotice(MessageOf(type, payload, handles)).status();
    EXPECT_EQ(status.code(), Code::kDataLoss)
        << "type " << type << ", " << payload.size() << " bytes, " << handles
        << " handles: " << status;
  }

 private:
  std::pair<Channel, Channel> ends_ = Must(Channel::Pair());
  platform::CancelEvent event_ = Must(platform::CancelEvent::Create());
};

TEST_F(ShareProtocol, MessagesHaveTheBytesThatTheFormatSays) {
  Must(SendWelcome(sender(),
                   {Must(platform::Duplicate(handle())),
                    Must(platform::Duplicate(handle()))},
                   Late()));
  Message message = Sent();
  EXPECT_EQ(message.type, 0xf011);
  EXPECT_EQ(message.payload.size(), 0u);
  EXPECT_EQ(message.handles.size(), 2u);

  const Ticket ticket = testing::TicketOfChunks(1);
  Must(SendNotice(sender(), SegmentOf(ticket), Late()));
  message = Sent();
  EXPECT_EQ(message.type, 0xf012);
  EXPECT_EQ(Hex(message.payload), "04030201" + Hex(EncodeTicket(ticket)) +
                                      Hex(Bytes(kSegmentPlaceBytes)));
  EXPECT_EQ(message.payload.size(), 220u);
  EXPECT_EQ(message.handles.size(), 1u);

  const Ticket fabric = testing::TicketOfChunks(1, HandleKind::kFabric);
  Must(SendNotice(sender(), SegmentOf(fabric), Late()));
  message = Sent();
  EXPECT_EQ(message.type, 0xf012);
  EXPECT_EQ(Hex(message.payload), "04030201" + Hex(EncodeTicket(fabric)) +
                                      Hex(Bytes(64, 0x5a)) +
                                      Hex(Bytes(kSegmentPlaceBytes)));
  EXPECT_EQ(message.payload.size(), 284u);
  EXPECT_EQ(message.handles.size(), 0u);

  Must(SendNotice(sender(), ForgetSegment{0x01020304}, Late()));
  message = Sent();
  EXPECT_EQ(message.type, 0xf013);
  EXPECT_EQ(Hex(message.payload), "04030201");
  EXPECT_EQ(message.handles.size(), 0u);

  Must(SendNotice(sender(),
                  RecallBlocks{absl::Milliseconds(0x0102),
                               {{3, 4, 5, 6, 7}, {1, 0, 1, 0, 0}}},
                  Late()));
  message = Sent();
  EXPECT_EQ(message.type, 0xf016);
  EXPECT_EQ(Hex(message.payload),
            "0201000000000000"
            "0300000004000000050000000000000006000000000000000700000000000000"
            "0100000000000000010000000000000000000000000000000000000000000000");
  EXPECT_EQ(message.handles.size(), 0u);

  Must(SendNotice(sender(), Closed(), Late()));
  message = Sent();
  EXPECT_EQ(message.type, 0xf014);
  EXPECT_TRUE(message.payload.empty() && message.handles.empty());

  Must(SendBye(sender(), Late()));
  message = Sent();
  EXPECT_EQ(message.type, 0xf015);
  EXPECT_TRUE(message.payload.empty() && message.handles.empty());
  EXPECT_TRUE(IsBye(message));
}

TEST_F(ShareProtocol, ASegmentIsOfNoWeakerKind) {
  for (HandleKind kind : {HandleKind::kLegacyIpc, HandleKind::kStreamPool}) {
    Must(SendNotice(sender(), SegmentOf(testing::TicketOfChunks(1, kind)),
                    Late()));
    EXPECT_TRUE(absl::IsDataLoss(DecodeNotice(Sent()).status()));
  }
}

TEST_F(ShareProtocol, NoticesComeAsTheyWereSent) {
  for (HandleKind kind : {HandleKind::kPosixFd, HandleKind::kFabric}) {
    const Ticket ticket = testing::TicketOfChunks(1, kind);
    Must(SendNotice(sender(), SegmentOf(ticket), Late()));
    const Notice notice = Must(DecodeNotice(Sent()));
    const auto& segment =
        *std::get<std::shared_ptr<const SharedSegment>>(notice);
    EXPECT_EQ(segment.number, 0x01020304u);
    EXPECT_EQ(segment.ticket, ticket);
    EXPECT_EQ(std::holds_alternative<fabric::Handle>(segment.handle),
              kind == HandleKind::kFabric);
  }
  Must(SendNotice(sender(), ForgetSegment{7}, Late()));
  EXPECT_EQ(std::get<ForgetSegment>(Must(DecodeNotice(Sent()))).number, 7u);
  Must(SendNotice(sender(), Closed(), Late()));
  EXPECT_TRUE(std::holds_alternative<Closed>(Must(DecodeNotice(Sent()))));
}

TEST_F(ShareProtocol, ARecallCutAnywhereOrOfNoBlockIsNone) {
  RecallBlocks recall{absl::Hours(1), {}};
  for (std::uint32_t i = 0; i < kMaxRecalled; ++i) {
    recall.blocks.push_back({i + 1, i, i + 2, 256 * std::uint64_t{i}, 256});
  }
  Must(SendNotice(sender(), recall, Late()));
  const Message whole = Sent();
  const auto came = std::get<RecallBlocks>(
      Must(DecodeNotice(Message{kRecall, whole.payload, {}})));
  EXPECT_EQ(came.within, absl::Hours(1));
  ASSERT_EQ(came.blocks.size(), kMaxRecalled);
  EXPECT_EQ(came.blocks[77].segment, 78u);
  EXPECT_EQ(came.blocks[77].slot, 77u);
  EXPECT_EQ(came.blocks[77].generation, 79u);
  EXPECT_EQ(came.blocks[77].offset, 77u * 256);
  EXPECT_EQ(came.blocks[77].size, 256u);

  const auto refused = [](Bytes payload) {
    return absl::IsDataLoss(
        DecodeNotice(Message{kRecall, std::move(payload), {}}).status());
  };
  const Bytes one(whole.payload.begin(), whole.payload.begin() + 40);
  EXPECT_FALSE(refused(one));
  for (std::size_t size = 0; size < 40; ++size) {
    EXPECT_TRUE(refused(Bytes(one.begin(), one.begin() + size))) << size;
  }
  Bytes more = whole.payload;  // One block more than a message may have.
  more.insert(more.end(), one.begin() + 8, one.end());
  EXPECT_TRUE(refused(more));
  Bytes bad = one;
  bad[7] = 0x80;  // A time below zero.
  EXPECT_TRUE(refused(bad));
  Bytes longest = one;
  std::fill(longest.begin(), longest.begin() + 7, std::uint8_t{0xff});
  longest[7] = 0x7f;
  EXPECT_FALSE(refused(longest));
  bad = one;
  bad[8] = 0;  // No segment.
  EXPECT_TRUE(refused(bad));
  bad = one;
  bad[14] = 0x10;  // A slot beyond the table.
  EXPECT_TRUE(refused(bad));
  bad = one;
  bad[16] = 0;  // No generation.
  EXPECT_TRUE(refused(bad));
}

TEST_F(ShareProtocol, ATimeThatHasPassedIsSentAsNoTime) {
  for (const absl::Duration within :
       {-absl::Seconds(1), absl::ZeroDuration()}) {
    Must(SendNotice(sender(), RecallBlocks{within, {{1, 0, 1, 0, 1}}}, Late()));
    EXPECT_EQ(std::get<RecallBlocks>(Must(DecodeNotice(Sent()))).within,
              absl::ZeroDuration());
  }
}

// Each wait would take half a second.
TEST_F(ShareProtocol, AGoodbyeWaitsForNobodyWhereNothingIsLost) {
  if (platform::kHangingUpMayLoseHandles) GTEST_SKIP() << "it waits here";
  constexpr int kGoodbyes = 20;
  std::vector<std::pair<Channel, Channel>> all;
  for (int i = 0; i < kGoodbyes; ++i) all.push_back(Must(Channel::Pair()));
  const absl::Time begin = absl::Now();
  for (auto& ends : all) Must(SendBye(ends.first, Late()));
  EXPECT_LT(absl::Now() - begin, kGoodbyes * absl::Milliseconds(500) / 2);
  for (auto& ends : all) EXPECT_TRUE(IsBye(Must(ends.second.Receive(Late()))));
}

TEST_F(ShareProtocol, ANoticeIsReceivedAndWhatIsNoneClosesTheChannel) {
  Must(SendNotice(sender(), ForgetSegment{7}, Late()));
  EXPECT_EQ(
      std::get<ForgetSegment>(Must(ReceiveNotice(receiver(), Late(), nullptr)))
          .number,
      7u);
  EXPECT_TRUE(receiver().is_open());
  EXPECT_EQ(ReceiveNotice(receiver(), absl::Now(), nullptr).status().code(),
            Code::kDeadlineExceeded);
  EXPECT_TRUE(receiver().is_open());
  Must(sender().Send(kForget, Bytes(4, 0), {}, Late()));
  EXPECT_EQ(ReceiveNotice(receiver(), Late(), nullptr).status().code(),
            Code::kDataLoss);
  EXPECT_FALSE(receiver().is_open());
  auto ends = Must(Channel::Pair());
  ends.first.Close();
  EXPECT_EQ(ReceiveNotice(ends.second, Late(), nullptr).status().code(),
            Code::kUnavailable);
}

TEST(HoldWord, SaysForHowLong) {
  for (const std::uint64_t now : {0ull, 15ull, 1'000'000ull, 1ull << 40}) {
    for (const std::uint64_t later : {0ull, 16ull, 1600ull, 86'400'000ull}) {
      EXPECT_NE(HoldWord(now), 0u);
      EXPECT_EQ(HeldForMs(HoldWord(now), now + later), later);
    }
  }
  // Across the moment at which the count comes round.
  const std::uint64_t turn = (std::uint64_t{1} << 31) * kHoldStepMs;
  EXPECT_EQ(HeldForMs(HoldWord(turn - 32), turn + 32), 64u);
}

TEST_F(ShareProtocol, ASegmentCutAnywhereOrWithOtherHandlesIsNone) {
  for (HandleKind kind : {HandleKind::kPosixFd, HandleKind::kFabric}) {
    const std::size_t handles = kind == HandleKind::kFabric ? 0 : 1;
    Must(SendNotice(sender(), SegmentOf(testing::TicketOfChunks(1, kind)),
                    Late()));
    const Bytes good = Sent().payload;
    ASSERT_TRUE(DecodeNotice(MessageOf(kSegment, good, handles)).ok());
    const std::size_t older = good.size() - kSegmentPlaceBytes;
    for (std::size_t size = 0; size < good.size(); ++size) {
      if (size == older) continue;
      ExpectNoNotice(kSegment, Bytes(good.begin(), good.begin() + size),
                     handles);
    }
    // Of an owner that has every segment by itself.
    const Notice notice = Must(DecodeNotice(MessageOf(
        kSegment, Bytes(good.begin(), good.begin() + older), handles)));
    EXPECT_EQ(
        std::get<std::shared_ptr<const SharedSegment>>(notice)->place.range,
        0u);
    Bytes longer = good;
    longer.push_back(0);
    ExpectNoNotice(kSegment, longer, handles);
    for (std::size_t other : {0, 1, 2, 3}) {
      if (other != handles) ExpectNoNotice(kSegment, good, other);
    }
    // The ticket has a checksum; the number only must be one.
    for (std::size_t bit = 32; bit < 8 * (4 + kTicketBytes); ++bit) {
      Bytes flipped = good;
      flipped[bit / 8] ^= static_cast<std::uint8_t>(1u << bit % 8);
      if (bit >= 8 * 12 && bit < 8 * 14) {  // A newer version of tickets.
        EXPECT_EQ(
            DecodeNotice(MessageOf(kSegment, flipped, handles)).status().code(),
            bit == 8 * 12 ? Code::kDataLoss : Code::kUnimplemented);
        continue;
      }
      ExpectNoNotice(kSegment, flipped, handles);
    }
    Bytes no_number = good;
    std::fill(no_number.begin(), no_number.begin() + 4, std::uint8_t{0});
    ExpectNoNotice(kSegment, no_number, handles);
  }
  // Memory of several chunks is no segment.
  Bytes payload = {1, 0, 0, 0};
  WireWriter(payload).PutBytes(EncodeTicket(testing::TicketOfChunks(2)));
  ExpectNoNotice(kSegment, payload, 1);
  ExpectNoNotice(kSegment, payload, 2);
}

TEST_F(ShareProtocol, ASegmentSaysWhereItLiesAmongOthers) {
  const Ticket ticket = testing::TicketOfChunks(1);
  const std::uint64_t size = ticket.layout.size;
  Notice notice = SegmentOf(ticket);
  const auto send = [&](const SegmentPlace& place) {
    auto segment = std::make_shared<SharedSegment>();
    segment->number = 1;
    segment->ticket = ticket;
    segment->handle = Must(platform::Duplicate(handle()));
    segment->place = place;
    Must(SendNotice(sender(),
                    std::shared_ptr<const SharedSegment>(std::move(segment)),
                    Late()));
    return Sent().payload;
  };
  const SegmentPlace place{0x01020304, 3 * size, 4 * size};
  const Bytes good = send(place);
  EXPECT_EQ(Hex(Bytes(good.end() - kSegmentPlaceBytes, good.end() - 16)),
            "0403020100000000");
  notice = Must(DecodeNotice(MessageOf(kSegment, good, 1)));
  const SegmentPlace came =
      std::get<std::shared_ptr<const SharedSegment>>(notice)->place;
  EXPECT_EQ(came.range, place.range);
  EXPECT_EQ(came.offset, place.offset);
  EXPECT_EQ(came.size, place.size);
  Must(DecodeNotice(MessageOf(kSegment, send({1, 0, kMaxRangeSize}), 1)));
  for (const SegmentPlace& wrong :
       {SegmentPlace{1, 3 * size + 1, 4 * size}, SegmentPlace{1, 0, size - 1},
        SegmentPlace{1, 1, 0}, SegmentPlace{1, ~std::uint64_t{0}, 4 * size},
        SegmentPlace{1, 0, kMaxRangeSize + 1}, SegmentPlace{0, 1, 0},
        SegmentPlace{0, 0, size}}) {
    ExpectNoNotice(kSegment, send(wrong), 1);
  }
  Bytes not_zero = good;
  not_zero[good.size() - 17] = 1;
  ExpectNoNotice(kSegment, not_zero, 1);
}

TEST_F(ShareProtocol, OtherNoticesAreExactlyWhatTheyAre) {
  for (std::size_t size : {0, 1, 3, 5, 100}) {
    ExpectNoNotice(kForget, Bytes(size, 1), 0);
  }
  ExpectNoNotice(kForget, Bytes(4, 1), 1);
  ExpectNoNotice(kForget, Bytes(4, 0), 0);
  ExpectNoNotice(kClosed, Bytes(1), 0);
  ExpectNoNotice(kClosed, Bytes(), 1);
  for (std::uint16_t type : {0x0000, 0x0001, 0xf001, 0xf006, 0xf010, 0xf011,
                             0xf015, 0xf016, 0xffff}) {
    ExpectNoNotice(type, Bytes(), 0);
  }
  EXPECT_FALSE(IsBye(MessageOf(kBye, Bytes(1), 0)));
  EXPECT_FALSE(IsBye(MessageOf(kBye, Bytes(), 1)));
  EXPECT_FALSE(IsBye(MessageOf(kClosed, Bytes(), 0)));
}

TEST_F(ShareProtocol, AWelcomeOfTooFewOrTooManyHandlesClosesTheChannel) {
  for (std::size_t handles : {0, 1, 3}) {
    auto ends = Must(Channel::Pair());
    const std::vector<const platform::OsHandle*> sent(handles, &handle());
    Must(ends.first.Send(kWelcome, {}, sent, Late()));
    EXPECT_EQ(ReceiveWelcome(ends.second, Late()).status().code(),
              Code::kDataLoss);
    EXPECT_FALSE(ends.second.is_open());
  }
  auto ends = Must(Channel::Pair());
  Must(protocol::SendError(ends.first, protocol::kAbort,
                           absl::NotFoundError("no such domain"), Late()));
  const absl::Status refused = ReceiveWelcome(ends.second, Late()).status();
  EXPECT_EQ(refused.code(), Code::kNotFound);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("no such domain"));
}

TEST_F(ShareProtocol, AWelcomeIsReceivedAndNothingElseIsOne) {
  auto ends = Must(Channel::Pair());
  const std::vector<const platform::OsHandle*> sent(2, &handle());
  Must(ends.first.Send(kWelcome, {}, sent, Late()));
  const Welcome welcome = Must(ReceiveWelcome(ends.second, Late()));
  EXPECT_TRUE(welcome.table.has_value());
  EXPECT_TRUE(welcome.holds.has_value());
  Must(ends.first.Send(kBye, {}, sent, Late()));
  EXPECT_EQ(ReceiveWelcome(ends.second, Late()).status().code(),
            Code::kDataLoss);
  auto others = Must(Channel::Pair());
  others.first.Close();
  EXPECT_EQ(ReceiveWelcome(others.second, Late()).status().code(),
            Code::kUnavailable);
}

TEST(ShareLayout, IsThatOfTheFormat) {
  EXPECT_EQ(kShareTableBytes, 33558528u);
  EXPECT_EQ(kHoldTableBytes, 4194304u);
  EXPECT_EQ(kPoolSlots, 1048576u);
  EXPECT_EQ(kShareHeaderBytes, 4096u);
  EXPECT_EQ(sizeof(Hold), 4u);
  EXPECT_EQ(offsetof(ShareHeader, version), 8u);
  EXPECT_EQ(offsetof(ShareHeader, slots), 12u);
  EXPECT_EQ(offsetof(ShareHeader, domain), 16u);
  EXPECT_EQ(sizeof(ShareHeader), 32u);
  EXPECT_EQ(offsetof(ShareRecord, generation), 0u);
  EXPECT_EQ(offsetof(ShareRecord, offset), 8u);
  EXPECT_EQ(offsetof(ShareRecord, size), 16u);
  EXPECT_EQ(offsetof(ShareRecord, segment), 24u);
  EXPECT_EQ(offsetof(ShareRecord, zero), 28u);
  EXPECT_EQ(sizeof(ShareRecord), 32u);
}

TEST(PoolString, HasTheBytesThatTheFormatSays) {
  AddressedPool pool{Domain(), {{}, Access::kRead, "/run/x"}};
  pool.invitation.key.place.fill(0xb1);
  pool.invitation.key.secret.fill(0xc2);
  const std::string text = FormatPoolString(pool);
  ASSERT_EQ(text.substr(0, 16), "vmmshare-pool:2:");
  std::string bytes;
  ASSERT_TRUE(absl::WebSafeBase64Unescape(text.substr(16), &bytes));
  ASSERT_EQ(bytes.size(), 53u);
  EXPECT_EQ(absl::BytesToHexString(bytes.substr(0, 49)),
            "a0a1a2a3a4a5a6a7a8a9aaabacadaeaf"
            "b1b1b1b1b1b1b1b1c2c2c2c2c2c2c2c2c2c2c2c2c2c2c2c2"
            "01"
            "0600"
            "2f72756e2f78");
  EXPECT_EQ(ParsePoolString(text).value(), pool);
  Bytes crc;
  WireWriter(crc).Put<std::uint32_t>(
      Crc32c(Bytes(bytes.begin(), bytes.begin() + 49)));
  EXPECT_EQ(absl::BytesToHexString(bytes.substr(49)), Hex(crc));
  EXPECT_EQ(text.find('='), std::string::npos) << "no padding";
}

}  // namespace
}  // namespace vmm::pool
