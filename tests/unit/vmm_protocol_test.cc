#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "platform/ipc/lifeline.h"
#include "tests/support/open_handles.h"
#include "tests/unit/vmm_protocol_samples.h"
#include "vmm/share/internal/protocol.h"
#include "vmm/share/transfer.h"

namespace vmm::protocol {
namespace {

using testing::AnyHandles;
using testing::ErrorPayload;
using ::testing::HasSubstr;
using testing::Late;
using testing::Must;
using Bytes = std::vector<std::uint8_t>;

MemoryId Id(std::uint64_t number) {
  MemoryId id{{}, number, static_cast<std::uint32_t>(number + 1)};
  id.owner.bytes.fill(0x5a);
  return id;
}

ShareKey Key(std::uint8_t number) {
  ShareKey key;
  key.place.fill(number);
  key.secret.fill(0xa5);
  return key;
}

platform::Message MessageOf(Bytes payload, std::uint16_t type = kOpen) {
  platform::Message message;
  message.type = type;
  message.payload = std::move(payload);
  return message;
}

// A request of `size` bytes of keys, all different.
Bytes OpenOf(std::size_t size, std::uint8_t version = 1) {
  Bytes bytes = {version, 0, 0, 0};
  for (std::size_t i = 0; i < size; ++i) {
    const std::size_t key = i / 24;
    bytes.push_back(static_cast<std::uint8_t>(i % 24 == 0   ? key
                                              : i % 24 == 1 ? key >> 8
                                                            : 0x77));
  }
  return bytes;
}

TEST(MessageType, IsOfTheReservedNumbers) {
  for (std::uint16_t type : {kBegin, kPart, kAbort, kDone, kRefused, kOpen,
                             kGranted, kReturn, kRecall}) {
    EXPECT_GE(type, kFirstReservedType);
  }
}

TEST(Open, HasTheBytesThatTheFormatSays) {
  auto [a, b] = Must(platform::Channel::Pair());
  Must(SendOpen(a, {Key(3)}, Late()));
  Must(platform::ReceiveLifeline(b, Late()));
  const platform::Message message = Must(b.Receive(Late()));
  Bytes expected = {1, 0, 0, 0};
  expected.insert(expected.end(), 8, 3);
  expected.insert(expected.end(), 16, 0xa5);
  EXPECT_EQ(message.type, 0xf009);
  EXPECT_EQ(message.payload, expected);
}

TEST(Open, ComesBackForEveryNumberOfKeys) {
  auto [a, b] = Must(platform::Channel::Pair());
  for (std::size_t count : {std::size_t{1}, std::size_t{2}, kMaxRequested}) {
    std::vector<ShareKey> keys;
    for (std::size_t i = 0; i < count; ++i) {
      keys.push_back(Key(static_cast<std::uint8_t>(i)));
      keys.back().place[7] = static_cast<std::uint8_t>(i >> 8);
    }
    Must(SendOpen(a, keys, Late()));
    Must(platform::ReceiveLifeline(b, Late()));
    EXPECT_EQ(Must(DecodeOpen(Must(b.Receive(Late())))), keys);
  }
}

TEST(Open, OfAnyLengthThatIsNoNumberOfKeysIsRefused) {
  for (std::size_t size = 0; size <= 24 * 4; ++size) {
    const auto decoded = DecodeOpen(MessageOf(OpenOf(size)));
    EXPECT_EQ(decoded.ok(), size != 0 && size % 24 == 0) << size;
    if (!decoded.ok()) {
      EXPECT_TRUE(absl::IsInvalidArgument(decoded.status()));
    }
  }
  for (std::size_t size = 0; size < 4; ++size) {
    EXPECT_TRUE(
        absl::IsInvalidArgument(DecodeOpen(MessageOf(Bytes(size, 0))).status()))
        << size;
  }
}

TEST(Open, OfMoreKeysThanAllowedIsRefused) {
  EXPECT_TRUE(DecodeOpen(MessageOf(OpenOf(24 * kMaxRequested))).ok());
  const absl::Status status =
      DecodeOpen(MessageOf(OpenOf(24 * (kMaxRequested + 1)))).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("1 to 1024 keys"));
}

TEST(Open, OfOneKeyTwiceIsRefused) {
  auto [a, b] = Must(platform::Channel::Pair());
  Must(SendOpen(a, {Key(1), Key(2), Key(1)}, Late()));
  Must(platform::ReceiveLifeline(b, Late()));
  const absl::Status status = DecodeOpen(Must(b.Receive(Late()))).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("the same key twice"));
}

TEST(Open, OfAnotherVersionSaysSo) {
  EXPECT_TRUE(
      absl::IsUnimplemented(DecodeOpen(MessageOf(OpenOf(24, 2))).status()));
  // What comes behind the version is for the newer one to say.
  EXPECT_TRUE(absl::IsUnimplemented(DecodeOpen(MessageOf({9, 0})).status()));
  // Too short to have a version.
  EXPECT_TRUE(absl::IsInvalidArgument(DecodeOpen(MessageOf({9})).status()));
  EXPECT_TRUE(
      absl::IsInvalidArgument(DecodeOpen(MessageOf(OpenOf(24, 0))).status()));
}

TEST(Open, OfAnotherTypeOrWithAHandleIsRefused) {
  for (std::uint32_t type = 0; type <= 0xffff; type += 7) {
    if (type == kOpen) continue;
    ASSERT_FALSE(
        DecodeOpen(MessageOf(OpenOf(24), static_cast<std::uint16_t>(type)))
            .ok());
  }
  platform::Message with_handle = MessageOf(OpenOf(24));
  with_handle.handles = AnyHandles(1);
  const absl::Status status = DecodeOpen(with_handle).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("1 handles"));
}

TEST(Granted, ComesBackAndNothingElseIsOne) {
  for (const Access access : {Access::kRead, Access::kReadWrite}) {
    auto [a, b] = Must(platform::Channel::Pair());
    Must(SendGranted(a, access, Late()));
    EXPECT_EQ(Must(ReceiveGranted(b, Late())), access);
  }
  for (const Bytes& payload :
       {Bytes{}, Bytes{1}, Bytes{0, 0, 0, 0}, Bytes{2, 0, 0, 0},
        Bytes{1, 1, 0, 0}, Bytes{1, 0, 0, 0, 0}}) {
    auto [a, b] = Must(platform::Channel::Pair());
    Must(a.Send(kGranted, payload, {}, Late()));
    EXPECT_TRUE(absl::IsDataLoss(ReceiveGranted(b, Late()).status()));
    EXPECT_FALSE(b.is_open());
  }
  auto [a, b] = Must(platform::Channel::Pair());
  Must(SendError(a, kAbort, absl::NotFoundError("gone"), Late()));
  EXPECT_TRUE(absl::IsNotFound(ReceiveGranted(b, Late()).status()));
}

TEST(Return, HasTheBytesThatTheFormatSays) {
  auto [a, b] = Must(platform::Channel::Pair());
  Must(SendReturn(a, {Id(3), Id(4)}, Late()));
  const platform::Message message = Must(b.Receive(Late()));
  EXPECT_EQ(message.type, 0xf007);
  EXPECT_EQ(message.payload.size(), 56u);
  EXPECT_EQ(Must(DecodeReturn(message)), (std::vector<MemoryId>{Id(3), Id(4)}));
  EXPECT_FALSE(DecodeOpen(message).ok());
  for (std::size_t size = 0; size < 56; ++size) {
    EXPECT_EQ(DecodeReturn(MessageOf(Bytes(size, 1), kReturn)).ok(),
              size == 28);
  }
  EXPECT_TRUE(
      DecodeReturn(MessageOf(Bytes(28 * kMaxRequested, 1), kReturn)).ok());
  EXPECT_FALSE(
      DecodeReturn(MessageOf(Bytes(28 * (kMaxRequested + 1), 1), kReturn))
          .ok());
}

TEST(Return, OfAnotherTypeOrWithAHandleIsRefused) {
  platform::Message message = MessageOf(Bytes(28, 1), kReturn);
  EXPECT_TRUE(DecodeReturn(message).ok());
  message.type = kRecall;
  EXPECT_TRUE(absl::IsInvalidArgument(DecodeReturn(message).status()));
  message.type = kReturn;
  message.handles = AnyHandles(1);
  EXPECT_TRUE(absl::IsInvalidArgument(DecodeReturn(message).status()));
}

TEST(Return, AndARecallComeBackForEveryNumberOfIds) {
  auto [a, b] = Must(platform::Channel::Pair());
  for (std::size_t count : {std::size_t{1}, std::size_t{2}, kMaxRequested}) {
    std::vector<MemoryId> ids;
    for (std::size_t i = 0; i < count; ++i) ids.push_back(Id(i));
    Must(SendReturn(a, ids, Late()));
    EXPECT_EQ(Must(DecodeReturn(Must(b.Receive(Late())))), ids);
    Must(SendRecall(a, ids, absl::Seconds(1), Late()));
    EXPECT_EQ(Must(DecodeRecall(Must(b.Receive(Late())))).ids, ids);
  }
}

TEST(Recall, HasTheBytesThatTheFormatSaysAndNoOthersAreOne) {
  auto [a, b] = Must(platform::Channel::Pair());
  Must(SendRecall(a, {Id(3)}, absl::Milliseconds(0x0102), Late()));
  const platform::Message message = Must(b.Receive(Late()));
  EXPECT_EQ(message.type, 0xf008);
  ASSERT_EQ(message.payload.size(), 36u);
  EXPECT_EQ(Bytes(message.payload.begin(), message.payload.begin() + 8),
            (Bytes{2, 1, 0, 0, 0, 0, 0, 0}));
  const Recall recall = Must(DecodeRecall(message));
  EXPECT_EQ(recall.within, absl::Milliseconds(0x0102));
  EXPECT_EQ(recall.ids, std::vector<MemoryId>{Id(3)});
  // A time that has passed, and one that never comes.
  Must(SendRecall(a, {Id(3)}, -absl::Seconds(1), Late()));
  EXPECT_EQ(Must(DecodeRecall(Must(b.Receive(Late())))).within,
            absl::ZeroDuration());
  Must(SendRecall(a, {Id(3)}, absl::InfiniteDuration(), Late()));
  EXPECT_GT(Must(DecodeRecall(Must(b.Receive(Late())))).within,
            absl::Hours(1'000'000));

  for (std::size_t size = 0; size <= 36 + 28; ++size) {
    const auto decoded = DecodeRecall(MessageOf(Bytes(size, 1), kRecall));
    EXPECT_EQ(decoded.ok(), size == 36 || size == 64) << size;
    if (!decoded.ok()) {
      EXPECT_TRUE(absl::IsDataLoss(decoded.status()));
    }
  }
  Bytes negative(36, 1);
  negative[7] = 0x80;
  EXPECT_FALSE(DecodeRecall(MessageOf(negative, kRecall)).ok());
  EXPECT_FALSE(DecodeRecall(MessageOf(Bytes(36, 1), kReturn)).ok());
  EXPECT_FALSE(
      DecodeRecall(MessageOf(Bytes(8 + 28 * (kMaxRequested + 1), 1), kRecall))
          .ok());
  platform::Message with_handle = MessageOf(Bytes(36, 1), kRecall);
  with_handle.handles = AnyHandles(1);
  EXPECT_FALSE(DecodeRecall(with_handle).ok());
}

TEST(RefusalOnTheWire, ComesBackWithCodeAndText) {
  auto [a, b] = Must(platform::Channel::Pair());
  for (int code = 2; code <= 16; ++code) {
    const absl::Status error(static_cast<absl::StatusCode>(code), "why not");
    ASSERT_TRUE(SendError(a, kRefused, error, Late()).ok());
    const platform::Message message = Must(b.Receive(Late()));
    EXPECT_EQ(message.type, kRefused);
    const absl::Status decoded = DecodeError(message.payload, "the importer");
    EXPECT_EQ(decoded.code(), error.code());
    EXPECT_EQ(decoded.message(), "the importer refused: why not");
  }
}

// The other side's program has cancelled nothing.
TEST(RefusalOnTheWire, OfWhatWasCancelledHereIsUnavailableThere) {
  auto [a, b] = Must(platform::Channel::Pair());
  ASSERT_TRUE(
      SendError(a, kAbort, absl::CancelledError("waiting"), Late()).ok());
  const absl::Status decoded =
      DecodeError(Must(b.Receive(Late())).payload, "the owner");
  EXPECT_TRUE(absl::IsUnavailable(decoded)) << decoded;
  EXPECT_EQ(decoded.message(),
            "the owner refused: it was told to stop meanwhile");
}

TEST(RefusalOnTheWire, OfAnUnknownCodeOrNoCodeIsDataLoss) {
  for (std::uint32_t code : {0u, 17u, 255u, 0x7fffffffu, 0xffffffffu}) {
    const absl::Status status =
        DecodeError(ErrorPayload(code, "text"), "the owner");
    EXPECT_TRUE(absl::IsDataLoss(status)) << code;
    EXPECT_THAT(std::string(status.message()), HasSubstr("cannot be read"));
  }
  for (std::size_t size = 0; size < 4; ++size) {
    EXPECT_TRUE(absl::IsDataLoss(DecodeError(Bytes(size, 1), "the owner")));
  }
}

TEST(RefusalOnTheWire, ShowsNothingUnprintableWhateverWasSent) {
  Bytes every(256);
  for (int i = 0; i < 256; ++i) every[i] = static_cast<std::uint8_t>(i);
  Bytes payload = ErrorPayload(5, "");
  payload.insert(payload.end(), every.begin(), every.end());
  const absl::Status status = DecodeError(payload, "the owner");
  EXPECT_TRUE(absl::IsNotFound(status));
  for (char c : status.message()) {
    ASSERT_TRUE(absl::ascii_isprint(static_cast<unsigned char>(c)));
  }
}

TEST(RefusalOnTheWire, IsCutAtBothEnds) {
  const Bytes payload = ErrorPayload(3, std::string(30000, 'x'));
  EXPECT_LE(DecodeError(payload, "").message().size(), 1024u + 16);
  auto [a, b] = Must(platform::Channel::Pair());
  ASSERT_TRUE(SendError(a, kAbort,
                        absl::InternalError(std::string(100000, 'y')), Late())
                  .ok());
  EXPECT_EQ(Must(b.Receive(Late())).payload.size(), 4u + 1024u);
}

}  // namespace
}  // namespace vmm::protocol
