// Requests to a keeper, its answers, and what it writes down for itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/must.h"
#include "tests/unit/vmm_keeper_samples.h"
#include "tests/unit/vmm_ticket_samples.h"
#include "vmm/keeper/internal/protocol.h"
#include "vmm/keeper/internal/record.h"

namespace vmm::keeper {
namespace {

using ::testing::HasSubstr;
using testing::Must;
using Bytes = std::vector<std::uint8_t>;

platform::Message MessageOf(const Request& request) {
  return {request.type, EncodeRequest(request), {}};
}

TEST(KeeperRequest, ComesBackAsItWasSent) {
  for (const Request& request : testing::SampleRequests()) {
    EXPECT_EQ(Must(DecodeRequest(MessageOf(request))), request) << request.type;
  }
}

TEST(KeeperRequest, CutOrLongerIsNone) {
  for (const Request& request : testing::SampleRequests()) {
    const platform::Message whole = MessageOf(request);
    for (std::size_t size = 0; size < whole.payload.size(); ++size) {
      const platform::Message cut = {
          whole.type,
          Bytes(whole.payload.begin(),
                whole.payload.begin() + static_cast<std::ptrdiff_t>(size)),
          {}};
      EXPECT_TRUE(absl::IsInvalidArgument(DecodeRequest(cut).status()));
    }
    platform::Message longer = MessageOf(request);
    longer.payload.push_back(0);
    EXPECT_TRUE(absl::IsInvalidArgument(DecodeRequest(longer).status()));
  }
}

TEST(KeeperRequest, EveryFlippedBitIsSeenOrMeansSomethingElse) {
  for (const Request& request : testing::SampleRequests()) {
    platform::Message message = MessageOf(request);
    for (std::size_t bit = 0; bit < message.payload.size() * 8; ++bit) {
      message.payload[bit / 8] ^= static_cast<std::uint8_t>(1 << bit % 8);
      const absl::StatusOr<Request> other = DecodeRequest(message);
      if (other.ok()) {
        EXPECT_NE(*other, request);
        EXPECT_EQ(EncodeRequest(*other), message.payload);
      }
      message.payload[bit / 8] ^= static_cast<std::uint8_t>(1 << bit % 8);
    }
  }
}

TEST(KeeperRequest, FieldsOfOtherTypesAreRefused) {
  platform::Message message = MessageOf({.type = kAttachOrCreate,
                                         .name = "n",
                                         .until_sealed = true,
                                         .size = 5,
                                         .wait = absl::Seconds(1)});
  for (std::uint16_t type : {kAttach, kLock, kSeal, kDrop, kUnlock, kAbandon}) {
    message.type = type;
    EXPECT_TRUE(absl::IsInvalidArgument(DecodeRequest(message).status()));
  }
}

TEST(KeeperRequest, ReplacesMemoryOrNothing) {
  platform::Message message =
      MessageOf({.type = kReplace,
                 .name = "n",
                 .ticket = testing::SampleTicket(),
                 .replaces = testing::SampleTicket().id});
  // An owner and a number without a generation are no memory's.
  std::fill(message.payload.end() - 4, message.payload.end(), 0);
  const absl::Status status = DecodeRequest(message).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  std::fill(message.payload.end() - 28, message.payload.end(), 0);
  EXPECT_FALSE(Must(DecodeRequest(message)).replaces.has_value());
}

TEST(KeeperRequest, OfANewerVersionSaysSo) {
  platform::Message message = MessageOf({.type = kLock, .name = "n"});
  message.payload[0] = 2;
  const absl::Status status = DecodeRequest(message).status();
  EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("version 2"));
  message.payload[0] = 0;
  EXPECT_TRUE(absl::IsInvalidArgument(DecodeRequest(message).status()));
}

TEST(KeeperRequest, NoWaitIsLongerThanADay) {
  const Request day = {.type = kLock, .name = "n", .wait = kMaxWait};
  EXPECT_TRUE(DecodeRequest(MessageOf(day)).ok());
  const Request more = {
      .type = kLock, .name = "n", .wait = kMaxWait + absl::Milliseconds(1)};
  EXPECT_FALSE(DecodeRequest(MessageOf(more)).ok());
}

TEST(KeeperRequest, NamesHaveTheirCharactersAndTheirLength) {
  for (const char* good : {"a", "A-Z_0.9/x", "-", "."}) {
    EXPECT_TRUE(CheckName(good).ok()) << good;
  }
  for (const std::string& bad :
       {std::string(), std::string(kMaxName + 1, 'a'), std::string("a b"),
        std::string("a\0b", 3), std::string("a\n"), std::string("\xff")}) {
    const absl::Status status = CheckName(bad);
    EXPECT_TRUE(absl::IsInvalidArgument(status));
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("1 to 128 of A-Z a-z 0-9 and \"._/-\""));
  }
  EXPECT_TRUE(CheckName(std::string(kMaxName, 'a')).ok());
}

TEST(KeeperAttached, HasThreeMeanings) {
  for (const Attached& attached :
       {Attached{}, Attached{.sealed = true}, Attached{.taken_over = true}}) {
    EXPECT_EQ(Must(DecodeAttached(EncodeAttached(attached))), attached);
  }
  for (const Bytes& bytes : {Bytes{}, Bytes{3}, Bytes{4}, Bytes{0, 0}}) {
    EXPECT_TRUE(absl::IsDataLoss(DecodeAttached(bytes).status()));
  }
}

TEST(KeeperPage, ComesBackAsItWasSent) {
  const Page page = testing::SamplePage();
  const Page again = Must(DecodePage(EncodePage(page)));
  EXPECT_EQ(again.memory, page.memory);
  EXPECT_EQ(again.more, page.more);
  EXPECT_EQ(again.restart_note, page.restart_note);
}

TEST(KeeperPage, CutAnywhereIsNone) {
  const Bytes whole = EncodePage(testing::SamplePage());
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_TRUE(absl::IsDataLoss(
        DecodePage(absl::MakeConstSpan(whole).subspan(0, size)).status()));
  }
}

TEST(KeeperPage, HoldsWhatFitsAndSaysThatThereIsMore) {
  Page page = testing::SamplePage();
  page.more = false;
  page.memory.resize(1);
  page.memory[0].name = std::string(kMaxName, 'n');
  page.memory.resize(1000, page.memory[0]);
  const Bytes bytes = EncodePage(page);
  EXPECT_LE(bytes.size(), platform::kMaxPayload);
  const Page again = Must(DecodePage(bytes));
  EXPECT_TRUE(again.more);
  EXPECT_GT(again.memory.size(), 50u);
  EXPECT_LT(again.memory.size(), 1000u);
}

TEST(KeeperPage, APageThatPromisesMoreAndHasNothingIsRefused) {
  EXPECT_TRUE(
      absl::IsDataLoss(DecodePage(EncodePage({.more = true})).status()));
  EXPECT_TRUE(DecodePage(EncodePage({})).ok());
}

// It quotes what the system says, or a path.
TEST(KeeperPage, ANoteThatDoesNotPrintIsSentAsOneThatDoes) {
  const Page again =
      Must(DecodePage(EncodePage({.restart_note = "caf\xc3\xa9 \n\x7f."})));
  EXPECT_EQ(again.restart_note, "caf?? ??.");
}

TEST(KeeperRecord, ComesBackAsItWasWritten) {
  for (const Record& record :
       {testing::SampleRecord(), testing::SampleReplacingRecord()}) {
    const Bytes bytes = EncodeRecord(record);
    EXPECT_EQ(bytes.size(), kRecordBytes);
    EXPECT_EQ(Must(DecodeRecord(bytes)), record);
  }
}

// A keeper that knows of no replacing would have the old entry and the new one.
TEST(KeeperRecord, OfOneThatReplacesAnotherHasAVersionOfItsOwn) {
  Bytes plain = EncodeRecord(testing::SampleRecord());
  Bytes replacing = EncodeRecord(testing::SampleReplacingRecord());
  EXPECT_EQ(plain[8], 1);
  EXPECT_EQ(replacing[8], 2);
  std::swap(plain[8], replacing[8]);
  for (Bytes* bytes : {&plain, &replacing}) {
    testing::RepairChecksum(*bytes);
    EXPECT_TRUE(absl::IsInvalidArgument(DecodeRecord(*bytes).status()));
  }
}

TEST(KeeperRecord, EveryFlippedBitAndEveryCutIsSeen) {
  Bytes bytes = EncodeRecord(testing::SampleRecord());
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] ^= static_cast<std::uint8_t>(1 << bit % 8);
    EXPECT_FALSE(DecodeRecord(bytes).ok()) << bit;
    bytes[bit / 8] ^= static_cast<std::uint8_t>(1 << bit % 8);
  }
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(
        DecodeRecord(absl::MakeConstSpan(bytes).subspan(0, size)).ok());
  }
}

TEST(KeeperRecord, OfANewerVersionSaysSo) {
  Bytes bytes = EncodeRecord(testing::SampleRecord());
  bytes[8] = 3;
  EXPECT_TRUE(absl::IsUnimplemented(DecodeRecord(bytes).status()));
}

TEST(KeeperRecord, WithAGoodChecksumIsStillChecked) {
  for (std::size_t at : {40u, 41u, 42u, 43u, 60u, 188u, 380u}) {
    Bytes bytes = EncodeRecord(testing::SampleRecord());
    bytes[at] = 0xfe;
    testing::RepairChecksum(bytes);
    EXPECT_TRUE(absl::IsInvalidArgument(DecodeRecord(bytes).status())) << at;
  }
}

TEST(KeeperStoredName, IsReadAsItIsWritten) {
  const StoredName record = Must(ParseStoredName(NameOfRecord(0xab, 7)));
  EXPECT_EQ(record, (StoredName{0xab, true, 7}));
  const StoredName handle =
      Must(ParseStoredName(NameOfHandle(~std::uint64_t{0}, 65535)));
  EXPECT_EQ(handle, (StoredName{~std::uint64_t{0}, false, 65535}));
}

TEST(KeeperStoredName, AnyOtherTextIsNone) {
  const std::string good = NameOfHandle(0xab, 7);
  for (const std::string& bad :
       {std::string(), std::string("stored"), good + " ", " " + good,
        good + "x", good.substr(0, good.size() - 1), "x" + good.substr(1),
        NameOfHandle(0xab, 7).replace(21, 1, "q"),
        std::string("vmk-00000000000000AB-h7"),
        std::string("vmk-00000000000000ab-h07"),
        std::string("vmk-00000000000000ab-h+7"),
        std::string("vmk-00000000000000ab-h4294967296")}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseStoredName(bad).status())) << bad;
  }
}

}  // namespace
}  // namespace vmm::keeper
