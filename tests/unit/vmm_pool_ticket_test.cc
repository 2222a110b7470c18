#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "vmm/pool/pool_ticket.h"

namespace vmm {
namespace {

using ::testing::HasSubstr;

constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();

PoolTicket Sample() {
  PoolTicket ticket;
  for (std::size_t i = 0; i < 16; ++i) {
    ticket.domain.bytes[i] = static_cast<std::uint8_t>(0xa0 + i);
  }
  ticket.segment = 0x01020304;
  ticket.slot = 0x0b0c0d;
  ticket.generation = 0x1112131415161718;
  ticket.offset = 0x2122232425262728;
  ticket.size = 0x3132333435363738;
  return ticket;
}

absl::Status ErrorOf(const PoolTicket& ticket) {
  return DecodePoolTicket(EncodePoolTicket(ticket)).status();
}

TEST(PoolTicket, HasTheBytesThatAreDocumented) {
  const std::vector<std::uint8_t> expected = {
      'V',  'P',  'T',  1,                             //
      0x04, 0x03, 0x02, 0x01,                          //
      0xa0, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7,  //
      0xa8, 0xa9, 0xaa, 0xab, 0xac, 0xad, 0xae, 0xaf,  //
      0x0d, 0x0c, 0x0b, 0x00,                          //
      0,    0,    0,    0,                             //
      0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11,  //
      0x28, 0x27, 0x26, 0x25, 0x24, 0x23, 0x22, 0x21,  //
      0x38, 0x37, 0x36, 0x35, 0x34, 0x33, 0x32, 0x31};
  const PoolTicketBytes bytes = EncodePoolTicket(Sample());
  EXPECT_EQ(std::vector<std::uint8_t>(bytes.begin(), bytes.end()), expected);
}

TEST(PoolTicket, ComesBackAsItWas) {
  const auto back = DecodePoolTicket(EncodePoolTicket(Sample()));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, Sample());
}

TEST(PoolTicket, ComesBackAtItsLimits) {
  PoolTicket least = Sample();
  least.segment = 1;
  least.slot = 0;
  least.generation = 1;
  least.offset = 0;
  least.size = 1;
  PoolTicket most = Sample();
  most.segment = std::numeric_limits<std::uint32_t>::max();
  most.slot = kPoolSlots - 1;
  most.generation = kMax;
  most.offset = kMax - 7;
  most.size = 7;
  for (const PoolTicket& ticket : {least, most}) {
    const auto back = DecodePoolTicket(EncodePoolTicket(ticket));
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(*back, ticket);
  }
}

TEST(PoolTicket, SaysWhichBlockItNames) {
  EXPECT_EQ(Sample().Describe(),
            "block of 3544952156018063160 bytes at 2387509390608836392 of "
            "segment 16909060, slot 723981.1230066625199609624, domain "
            "a0a1a2a3a4a5a6a7a8a9aaabacadaeaf");
}

TEST(PoolTicket, DiffersWhenAnyFieldDiffers) {
  std::vector<PoolTicket> others(6, Sample());
  others[0].domain.bytes[15] ^= 1;
  others[1].segment ^= 1;
  others[2].slot ^= 1;
  others[3].generation ^= 1;
  others[4].offset ^= 1;
  others[5].size ^= 1;
  for (const PoolTicket& other : others) EXPECT_NE(other, Sample());
}

// Each field that no ticket can have, and the words that say so.
TEST(PoolTicket, AFieldThatNoTicketHasIsAnInvalidArgument) {
  struct Case {
    void (*spoil)(PoolTicket&);
    const char* words;
  };
  const Case cases[] = {
      {[](PoolTicket& t) { t.segment = 0; }, "of segment 0"},
      {[](PoolTicket& t) { t.slot = kPoolSlots; },
       "of slot 1048576; there are 1048576"},
      {[](PoolTicket& t) { t.generation = 0; }, "of generation 0"},
      {[](PoolTicket& t) { t.size = 0; }, "of 0 bytes"},
      {[](PoolTicket& t) { t.size = 7, t.offset = kMax - 6; },
       "of 7 bytes at 18446744073709551609 ends beyond 64 bits"},
  };
  for (const Case& one : cases) {
    PoolTicket ticket = Sample();
    one.spoil(ticket);
    EXPECT_EQ(ErrorOf(ticket), absl::InvalidArgumentError(
                                   absl::StrCat("a pool ticket ", one.words)));
  }
}

TEST(PoolTicket, AnotherSizeIsAnInvalidArgument) {
  const PoolTicketBytes bytes = EncodePoolTicket(Sample());
  std::vector<std::uint8_t> longer(bytes.begin(), bytes.end());
  longer.push_back(0);
  for (std::size_t size = 0; size <= longer.size(); ++size) {
    if (size == kPoolTicketBytes) continue;
    const absl::Status status =
        DecodePoolTicket(absl::MakeConstSpan(longer.data(), size)).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << size << " " << status;
    EXPECT_THAT(status.message(), HasSubstr(absl::StrCat("these are ", size)));
  }
}

TEST(PoolTicket, MagicAndPaddingAreChecked) {
  for (const std::size_t at : {0, 1, 2, 28, 29, 30, 31}) {
    PoolTicketBytes bytes = EncodePoolTicket(Sample());
    bytes[at] ^= 0x10;
    const absl::Status status = DecodePoolTicket(bytes).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << at << " " << status;
    EXPECT_THAT(status.message(),
                HasSubstr(at < 3 ? "starts with" : "zeros at byte 28"));
  }
}

TEST(PoolTicket, ANewerVersionIsUnimplementedAndVersionZeroIsNone) {
  PoolTicketBytes bytes = EncodePoolTicket(Sample());
  bytes[3] = 2;
  const absl::Status newer = DecodePoolTicket(bytes).status();
  EXPECT_TRUE(absl::IsUnimplemented(newer));
  EXPECT_THAT(newer.message(),
              HasSubstr("of version 2; this vmmshare reads version 1"));
  bytes[3] = 0;
  EXPECT_EQ(DecodePoolTicket(bytes).status(),
            absl::InvalidArgumentError("a pool ticket has no version 0"));
}

// Whoever compares a ticket with the owner's record thereby finds every
// flipped bit.
TEST(PoolTicket, EveryFlippedBitIsRefusedOrMakesAnotherTicket) {
  int refused = 0;
  for (std::size_t bit = 0; bit < 8 * kPoolTicketBytes; ++bit) {
    PoolTicketBytes bytes = EncodePoolTicket(Sample());
    bytes[bit / 8] ^= static_cast<std::uint8_t>(1 << bit % 8);
    const auto other = DecodePoolTicket(bytes);
    if (other.ok()) {
      EXPECT_NE(*other, Sample()) << "bit " << bit;
    } else {
      ++refused;
    }
  }
  // Magic and version 32, padding 32, the slot's upper 12 bits.
  EXPECT_EQ(refused, 32 + 32 + 12);
}

}  // namespace
}  // namespace vmm
