#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "platform/base/hex.h"
#include "tests/unit/vmm_ticket_samples.h"
#include "vmm/share/ticket.h"

namespace vmm {
namespace {

using ::testing::HasSubstr;
using testing::RepairChecksum;
using testing::SampleTicket;
using Bytes = std::vector<std::uint8_t>;

std::string Hex(const Bytes& bytes) {
  return absl::BytesToHexString(std::string(bytes.begin(), bytes.end()));
}

absl::Status Decoded(const Bytes& bytes) {
  return DecodeTicket(bytes).status();
}

void ExpectMalformed(const Bytes& bytes, const std::string& words) {
  const absl::Status status = Decoded(bytes);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(words));
  EXPECT_THAT(std::string(status.message()), HasSubstr("not a usable ticket"));
}

// The sample with `value` put at `offset` and a checksum that fits.
Bytes With(std::size_t offset, const Bytes& value) {
  Bytes bytes = EncodeTicket(SampleTicket());
  std::copy(value.begin(), value.end(), bytes.begin() + offset);
  RepairChecksum(bytes);
  return bytes;
}

template <typename T>
Bytes Little(T value) {
  Bytes bytes;
  WireWriter(bytes).Put<T>(value);
  return bytes;
}

// docs/wire_format.md shows these bytes. They were put together by another
// program than vmmshare; a change here is a new version of the format.
TEST(Ticket, HasTheBytesThatTheFormatSays) {
  const std::vector<std::pair<std::size_t, std::string>> fields = {
      {0, "564d4d5348415245"},                   // "VMMSHARE"
      {8, "0100"},                               // version
      {10, "c000"},                              // length
      {12, "01"},                                // handle kind
      {13, "01"},                                // location type
      {14, "01"},                                // driver
      {15, "00"},                                // flags
      {16, "0000600000000000"},                  // size
      {24, "0000400000000000"},                  // chunk size
      {32, "02000000"},                          // chunks
      {36, "07000000"},                          // generation
      {40, "000102030405060708090a0b0c0d0e0f"},  // owner
      {56, "8877665544332211"},                  // number
      {64, "101112131415161718191a1b1c1d1e1f"},  // device
      {80, "202122232425262728292a2b2c2d2e2f"},  // boot id
      {96, "00000000"},                          // NUMA node
      {100, "00000000"},                         // reserved
      {104, "f1ff5f0000000000"},                 // requested size
      {112, "6770752d686f73742e6578616d706c65" + std::string(96, '0')},
      {176, std::string(24, '0')},  // reserved
      {188, "d09ca592"},            // CRC-32C
  };
  std::string expected;
  for (const auto& [offset, hex] : fields) {
    ASSERT_EQ(expected.size() / 2, offset);
    expected += hex;
  }
  ASSERT_EQ(expected.size(), 2 * kTicketBytes);
  EXPECT_EQ(Hex(EncodeTicket(SampleTicket())), expected);
  const std::string raw = platform::BytesFromHex(expected).value();
  const auto decoded = DecodeTicket(Bytes(raw.begin(), raw.end()));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(*decoded, SampleTicket());
}

TEST(Ticket, ComesBackAsItWas) {
  std::vector<Ticket> tickets(6, SampleTicket());
  tickets[0].kind = HandleKind::kFabric;
  tickets[1].kind = HandleKind::kWin32;
  tickets[2].host_memory_driver = false;
  tickets[3].host_numa_node = 3;
  tickets[4].host_name = "";
  tickets[5].layout = {1, 1};
  tickets[5].requested_size = 1;
  for (const Ticket& ticket : tickets) {
    const Bytes bytes = EncodeTicket(ticket);
    ASSERT_EQ(bytes.size(), kTicketBytes);
    const auto decoded = DecodeTicket(bytes);
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(*decoded, ticket);
  }
}

TEST(Ticket, NumaNodeZeroIsNotTheSameAsNoNode) {
  Ticket host = SampleTicket();
  host.host_numa_node = 0;
  const auto decoded = DecodeTicket(EncodeTicket(host));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->host_numa_node, 0u);
  EXPECT_NE(*decoded, SampleTicket());
}

TEST(Ticket, CutAtEveryByteIsRefused) {
  const Bytes whole = EncodeTicket(SampleTicket());
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const absl::Status status =
        Decoded(Bytes(whole.begin(), whole.begin() + size));
    ASSERT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << size;
  }
  Bytes longer = whole;
  longer.push_back(0);
  ExpectMalformed(longer, "193 bytes given");
}

TEST(Ticket, WithAnotherMarkOrWithoutAllOfItIsRefused) {
  const std::string words = "does not begin with the ticket's mark";
  for (std::size_t at = 0; at < 8; ++at)
    ExpectMalformed(With(at, {'X'}), words);
  const Bytes whole = EncodeTicket(SampleTicket());
  for (std::size_t size = 0; size < 12; ++size) {
    ExpectMalformed(Bytes(whole.begin(), whole.begin() + size), words);
  }
}

TEST(Ticket, WithEachBitFlippedIsRefused) {
  Bytes bytes = EncodeTicket(SampleTicket());
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] ^= static_cast<std::uint8_t>(1 << bit % 8);
    const absl::Status status = Decoded(bytes);
    // A flipped bit of the version can make it a newer one.
    const bool in_version = bit / 8 == 8 || bit / 8 == 9;
    ASSERT_TRUE(absl::IsInvalidArgument(status) ||
                (in_version && absl::IsUnimplemented(status)))
        << "bit " << bit << ": " << status;
    bytes[bit / 8] ^= static_cast<std::uint8_t>(1 << bit % 8);
  }
  EXPECT_TRUE(Decoded(bytes).ok());
}

TEST(Ticket, OfANewerVersionSaysWhatToDo) {
  for (std::uint16_t version : {2, 3, 256, 65535}) {
    const absl::Status status = Decoded(With(8, Little(version)));
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(absl::StrCat("format version ", version)));
    EXPECT_THAT(std::string(status.message()), HasSubstr("reads 1"));
  }
}

TEST(Ticket, OfANewerVersionMayHaveAnyLength) {
  Bytes bytes = With(8, Little<std::uint16_t>(2));
  bytes.resize(400);
  EXPECT_TRUE(absl::IsUnimplemented(Decoded(bytes)));
  bytes.resize(12);
  EXPECT_TRUE(absl::IsUnimplemented(Decoded(bytes)));
}

TEST(Ticket, OfVersionZeroIsRefused) {
  ExpectMalformed(With(8, Little<std::uint16_t>(0)), "version 0");
}

TEST(Ticket, WithAWrongStatedLengthIsRefused) {
  for (std::uint16_t length : {0, 191, 193, 65535}) {
    ExpectMalformed(With(10, Little(length)),
                    absl::StrCat("stated length ", length));
  }
}

TEST(Ticket, WithEveryUnknownHandleKindIsRefused) {
  for (int kind = 0; kind < 256; ++kind) {
    if (HandleKindSet::FromBits(kind).bits() == static_cast<unsigned>(kind) &&
        std::has_single_bit(static_cast<unsigned>(kind))) {
      continue;
    }
    ExpectMalformed(With(12, {static_cast<std::uint8_t>(kind)}),
                    absl::StrCat("handle kind ", kind));
  }
}

TEST(Ticket, WithEveryUnknownLocationIsRefused) {
  for (int where = 0; where < 256; ++where) {
    if (where == CU_MEM_LOCATION_TYPE_DEVICE ||
        where == CU_MEM_LOCATION_TYPE_HOST_NUMA) {
      continue;
    }
    ExpectMalformed(With(13, {static_cast<std::uint8_t>(where)}),
                    absl::StrCat("location type ", where));
  }
}

TEST(Ticket, WithUnknownDriverOrFlagsIsRefused) {
  for (int value = 1; value < 256; ++value) {
    const auto byte = static_cast<std::uint8_t>(value);
    if (value > 1) ExpectMalformed(With(14, {byte}), "driver");
    if (value > 1) {
      ExpectMalformed(With(15, {byte}), absl::StrCat("flags ", value));
    }
  }
}

TEST(Ticket, SaysWhetherNetworkCardsCanBeGivenTheMemory) {
  Ticket ticket = SampleTicket();
  EXPECT_FALSE(ticket.rdma_capable);
  ticket.rdma_capable = true;
  const Bytes bytes = EncodeTicket(ticket);
  EXPECT_EQ(bytes, With(15, {1}));
  const absl::StatusOr<Ticket> decoded = DecodeTicket(bytes);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(*decoded, ticket);
}

TEST(Ticket, WithImpossibleSizesIsRefused) {
  constexpr std::uint64_t kMax = ~std::uint64_t{0};
  ExpectMalformed(With(16, Little<std::uint64_t>(0)), "size 0");
  ExpectMalformed(With(24, Little<std::uint64_t>(0)), "chunk size 0");
  ExpectMalformed(With(24, Little<std::uint64_t>(7 << 20)), "chunk size");
  ExpectMalformed(With(16, Little<std::uint64_t>(4 << 20)), "2 chunks");
  ExpectMalformed(With(16, Little<std::uint64_t>(kMax)), "2 chunks");
  ExpectMalformed(With(24, Little<std::uint64_t>(1)), "expected 6291456");
  ExpectMalformed(With(32, Little<std::uint32_t>(0)), "0 chunks");
  ExpectMalformed(With(32, Little<std::uint32_t>(1)), "1 chunks");
  ExpectMalformed(With(32, Little<std::uint32_t>(3)), "3 chunks");
  ExpectMalformed(With(32, Little<std::uint32_t>(0xffffffff)), "chunks");
  ExpectMalformed(With(104, Little<std::uint64_t>(0)), "0 bytes asked for");
  ExpectMalformed(With(104, Little<std::uint64_t>((6 << 20) + 1)),
                  "6291457 bytes asked for");
  ExpectMalformed(With(104, Little<std::uint64_t>(kMax)), "asked for");
}

TEST(Ticket, WithMoreChunksThanAPeerHoldsIsRefused) {
  Ticket ticket = SampleTicket();
  ticket.layout = {std::uint64_t{kMaxChunks} << 21, 2 << 20};
  ticket.requested_size = ticket.layout.size;
  EXPECT_TRUE(Decoded(EncodeTicket(ticket)).ok());
  ticket.layout.size += 2 << 20;
  ExpectMalformed(EncodeTicket(ticket), "at most 65536");
}

TEST(Ticket, OfTheLargestSizeHasOneChunk) {
  Ticket ticket = SampleTicket();
  ticket.layout = {~std::uint64_t{0}, ~std::uint64_t{0}};
  const auto decoded = DecodeTicket(EncodeTicket(ticket));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->layout.count(), 1u);
  EXPECT_EQ(*decoded, ticket);
}

TEST(Ticket, WithANodeForDeviceMemoryIsRefused) {
  ExpectMalformed(With(96, Little<std::uint32_t>(1)),
                  "NUMA node 1 for device memory");
}

TEST(Ticket, OfAWeakerKindHasOneChunkOfADevice) {
  for (HandleKind kind : {HandleKind::kLegacyIpc, HandleKind::kStreamPool}) {
    Ticket ticket = testing::TicketOfChunks(1, kind);
    const auto decoded = DecodeTicket(EncodeTicket(ticket));
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(*decoded, ticket);
    ticket.host_numa_node = 0;
    EXPECT_TRUE(
        absl::IsInvalidArgument(DecodeTicket(EncodeTicket(ticket)).status()));
    EXPECT_TRUE(absl::IsInvalidArgument(
        DecodeTicket(EncodeTicket(testing::TicketOfChunks(2, kind))).status()));
  }
}

TEST(Ticket, WithAnyReservedByteSetIsRefused) {
  for (std::size_t offset : {100, 101, 102, 103, 176, 177, 182, 187}) {
    ExpectMalformed(With(offset, {1}), "reserved bytes are not zero");
  }
}

TEST(Ticket, WithAHostileHostNameIsRefused) {
  const auto name = [](Bytes field) {
    field.resize(64, 0);
    return With(112, field);
  };
  const std::string words = "host name is not printable";
  ExpectMalformed(name(Bytes(64, 'a')), words);  // Not terminated.
  ExpectMalformed(name({'a', '\n', 'b'}), words);
  ExpectMalformed(name({'a', ' ', 'b'}), words);
  ExpectMalformed(name({0x1b, '[', '2', 'J'}), words);  // Terminal control.
  ExpectMalformed(name({'a', 0x7f}), words);
  ExpectMalformed(name({0xc3, 0xa4}), words);
  ExpectMalformed(name({'a', 0, 'b'}), words);  // Hidden behind the end.
  Bytes longest(63, 'z');
  const auto decoded = DecodeTicket(name(longest));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->host_name, std::string(63, 'z'));
}

TEST(Ticket, CarriesNoUnprintableOrLongHostName) {
  Ticket ticket = SampleTicket();
  ticket.host_name = std::string(200, 'x');
  auto decoded = DecodeTicket(EncodeTicket(ticket));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->host_name, std::string(63, 'x'));
  ticket.host_name = std::string("a\nb\0c\xff", 6);
  decoded = DecodeTicket(EncodeTicket(ticket));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->host_name, "a?b?c?");
}

TEST(Ticket, DescribesItselfInOnePrintableLine) {
  Ticket ticket = SampleTicket();
  EXPECT_EQ(ticket.Describe(),
            "6291456 bytes of GPU-10111213-1415-1617-1819-1a1b1c1d1e1f, shared "
            "as POSIX fd by host gpu-host.example "
            "(000102030405060708090a0b0c0d0e0f/1234605616436508552.7)");
  ticket.host_numa_node = 2;
  EXPECT_THAT(ticket.Describe(), HasSubstr("bytes of host NUMA node 2"));
}

TEST(Pitfall06, TheKindOfHandleTravelsInEveryTicket) {
  for (HandleKind kind :
       {HandleKind::kPosixFd, HandleKind::kWin32, HandleKind::kFabric}) {
    Ticket ticket = SampleTicket();
    ticket.kind = kind;
    const Bytes bytes = EncodeTicket(ticket);
    EXPECT_EQ(bytes[12], static_cast<std::uint8_t>(kind));
    EXPECT_EQ(DecodeTicket(bytes)->kind, kind);
  }
}

TEST(Pitfall16, TheTicketCarriesTheSizesThatTheHandleDoesNot) {
  const auto decoded = DecodeTicket(EncodeTicket(SampleTicket()));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->layout, (ChunkLayout{6 << 20, 4 << 20}));
  EXPECT_EQ(decoded->layout.SizeOf(0), 4u << 20);
  EXPECT_EQ(decoded->layout.SizeOf(1), 2u << 20);
  EXPECT_EQ(decoded->requested_size, 0x5ffff1u);
}

// Nothing that means something else in another process: every byte of the
// format is accounted for by HasTheBytesThatTheFormatSays.
TEST(Pitfall19, TheTicketNamesTheDeviceByUuidAndNotByOrdinal) {
  Ticket ticket = SampleTicket();
  ticket.device.bytes.fill(0xab);
  const auto decoded = DecodeTicket(EncodeTicket(ticket));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->device, ticket.device);
  EXPECT_THAT(ticket.Describe(), HasSubstr(ticket.device.ToString()));
}

}  // namespace
}  // namespace vmm
