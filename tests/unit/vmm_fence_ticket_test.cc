#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <vector>

#include "vmm/sync/fence_pool.h"

namespace vmm {
namespace {

using ::testing::HasSubstr;

FenceTicket Sample() {
  FenceTicket ticket;
  for (std::size_t i = 0; i < 16; ++i) {
    ticket.domain.bytes[i] = static_cast<std::uint8_t>(0xa0 + i);
  }
  ticket.segment = 0x01020304;
  ticket.slot = 0x0b0c0d;
  ticket.generation = 0x1112131415161718;
  ticket.offset = 0x2122232425262700;
  return ticket;
}

absl::Status ErrorOf(const FenceTicket& ticket) {
  return DecodeFenceTicket(EncodeFenceTicket(ticket)).status();
}

TEST(FenceTicket, HasTheBytesThatAreDocumented) {
  const std::vector<std::uint8_t> expected = {
      'V',  'F',  'T',  1,                             //
      0x04, 0x03, 0x02, 0x01,                          //
      0xa0, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7,  //
      0xa8, 0xa9, 0xaa, 0xab, 0xac, 0xad, 0xae, 0xaf,  //
      0x0d, 0x0c, 0x0b, 0x00,                          //
      0,    0,    0,    0,                             //
      0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11,  //
      0x00, 0x27, 0x26, 0x25, 0x24, 0x23, 0x22, 0x21};
  const FenceTicketBytes bytes = EncodeFenceTicket(Sample());
  EXPECT_EQ(std::vector<std::uint8_t>(bytes.begin(), bytes.end()), expected);
}

TEST(FenceTicket, ComesBackAsItWasAlsoAtItsLimits) {
  FenceTicket least = Sample();
  least.segment = 1;
  least.slot = 0;
  least.generation = 1;
  least.offset = 0;
  FenceTicket most = Sample();
  most.segment = std::numeric_limits<std::uint32_t>::max();
  most.slot = kPoolSlots - 1;
  most.generation = std::numeric_limits<std::uint64_t>::max();
  most.offset = 0 - 2 * kFenceBytes;
  for (const FenceTicket& ticket : {Sample(), least, most}) {
    const auto back = DecodeFenceTicket(EncodeFenceTicket(ticket));
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(*back, ticket);
    EXPECT_EQ(FenceOf(BlockOf(ticket)), ticket);
  }
  EXPECT_EQ(BlockOf(Sample()).size, kFenceBytes);
}

TEST(FenceTicket, SaysWhichFenceItNames) {
  EXPECT_EQ(Sample().Describe(),
            "fence at 2387509390608836352 of segment 16909060, slot "
            "723981.1230066625199609624, domain "
            "a0a1a2a3a4a5a6a7a8a9aaabacadaeaf");
}

TEST(FenceTicket, AFieldThatNoTicketHasIsAnInvalidArgument) {
  struct Case {
    void (*spoil)(FenceTicket&);
    const char* words;
  };
  const Case cases[] = {
      {[](FenceTicket& t) { t.segment = 0; }, "segment 0"},
      {[](FenceTicket& t) { t.slot = kPoolSlots; }, "slot 1048576"},
      {[](FenceTicket& t) { t.generation = 0; }, "generation 0"},
      {[](FenceTicket& t) { t.offset += 8; }, "where no fence can be"},
      {[](FenceTicket& t) { t.offset = 0 - kFenceBytes; },
       "where no fence can be"},
  };
  for (const Case& one : cases) {
    FenceTicket ticket = Sample();
    one.spoil(ticket);
    const absl::Status status = ErrorOf(ticket);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(status.message(), HasSubstr(one.words));
  }
  EXPECT_TRUE(absl::IsInvalidArgument(ErrorOf({})));
}

TEST(FenceTicket, AnotherSizeIsAnInvalidArgument) {
  const FenceTicketBytes bytes = EncodeFenceTicket(Sample());
  std::vector<std::uint8_t> longer(bytes.begin(), bytes.end());
  longer.push_back(0);
  for (std::size_t size = 0; size <= longer.size(); ++size) {
    if (size == kFenceTicketBytes) continue;
    EXPECT_TRUE(absl::IsInvalidArgument(
        DecodeFenceTicket(absl::MakeConstSpan(longer.data(), size)).status()))
        << size;
  }
}

TEST(FenceTicket, MagicAndPaddingAreChecked) {
  for (const std::size_t at : {0, 1, 2, 28, 29, 30, 31}) {
    FenceTicketBytes bytes = EncodeFenceTicket(Sample());
    bytes[at] ^= 0x10;
    const absl::Status status = DecodeFenceTicket(bytes).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << at << " " << status;
    EXPECT_THAT(status.message(),
                HasSubstr(at < 3 ? "starts with" : "zeros at byte 28"));
  }
}

TEST(FenceTicket, ANewerVersionIsUnimplementedAndVersionZeroIsNone) {
  FenceTicketBytes bytes = EncodeFenceTicket(Sample());
  bytes[3] = 2;
  const absl::Status newer = DecodeFenceTicket(bytes).status();
  EXPECT_TRUE(absl::IsUnimplemented(newer));
  EXPECT_THAT(newer.message(),
              HasSubstr("of version 2; this vmmshare reads version 1"));
  bytes[3] = 0;
  EXPECT_EQ(DecodeFenceTicket(bytes).status(),
            absl::InvalidArgumentError("a fence ticket has no version 0"));
}

// A handle of one kind that is read as another is what broke systems before.
TEST(Pitfall06, AFencesTicketIsNoBuffersAndTheOtherWayRound) {
  const FenceTicketBytes fence = EncodeFenceTicket(Sample());
  std::vector<std::uint8_t> as_block(fence.begin(), fence.end());
  as_block.resize(kPoolTicketBytes, 1);
  EXPECT_TRUE(absl::IsInvalidArgument(DecodePoolTicket(as_block).status()));
  const PoolTicketBytes block = EncodePoolTicket(BlockOf(Sample()));
  EXPECT_TRUE(absl::IsInvalidArgument(
      DecodeFenceTicket(
          absl::MakeConstSpan(block).subspan(0, kFenceTicketBytes))
          .status()));
}

// Whoever compares a ticket with the owner's record thereby finds every
// flipped bit.
TEST(FenceTicket, EveryFlippedBitIsRefusedOrMakesAnotherTicket) {
  int refused = 0;
  for (std::size_t bit = 0; bit < 8 * kFenceTicketBytes; ++bit) {
    FenceTicketBytes bytes = EncodeFenceTicket(Sample());
    bytes[bit / 8] ^= static_cast<std::uint8_t>(1 << bit % 8);
    const auto other = DecodeFenceTicket(bytes);
    if (other.ok()) {
      EXPECT_NE(*other, Sample()) << "bit " << bit;
    } else {
      ++refused;
    }
  }
  // Magic and version 32, padding 32, the slot's upper 12 bits, the offset's
  // lower 8.
  EXPECT_EQ(refused, 32 + 32 + 12 + 8);
}

}  // namespace
}  // namespace vmm
