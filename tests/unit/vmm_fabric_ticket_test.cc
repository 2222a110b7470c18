#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tests/unit/vmm_ticket_samples.h"
#include "vmm/share/transfer.h"

namespace vmm {
namespace {

using ::testing::HasSubstr;
using testing::RepairChecksum;
using testing::SampleFabricTicket;
using Bytes = std::vector<std::uint8_t>;

void ExpectRefused(const Bytes& bytes, const std::string& words) {
  const absl::Status status = DecodeFabricTicket(bytes).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(words));
}

TEST(FabricTicket, HasTheBytesThatTheFormatSays) {
  const FabricTicket ticket = SampleFabricTicket(3);
  const Bytes bytes = EncodeFabricTicket(ticket);
  ASSERT_EQ(bytes.size(), 192u + 3 * 64 + 4);
  EXPECT_EQ(Bytes(bytes.begin(), bytes.begin() + 192),
            EncodeTicket(ticket.ticket));
  for (std::size_t chunk = 0; chunk < 3; ++chunk) {
    for (std::size_t i = 0; i < 64; ++i) {
      EXPECT_EQ(bytes[192 + 64 * chunk + i], chunk + i);
    }
  }
  Bytes again = bytes;
  RepairChecksum(again);
  EXPECT_EQ(again, bytes);
}

TEST(FabricTicket, ComesBackAsItWas) {
  for (std::size_t chunks : {std::size_t{1}, std::size_t{3}, kMaxChunks}) {
    const FabricTicket ticket = SampleFabricTicket(chunks);
    const Bytes bytes = EncodeFabricTicket(ticket);
    EXPECT_EQ(bytes.size(), FabricTicketBytes(chunks));
    const absl::StatusOr<FabricTicket> decoded = DecodeFabricTicket(bytes);
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_TRUE(*decoded == ticket);
  }
}

TEST(FabricTicket, EveryCutAndEveryFlippedBitIsFound) {
  const Bytes bytes = EncodeFabricTicket(SampleFabricTicket(2));
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    const Bytes cut(bytes.begin(),
                    bytes.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_FALSE(DecodeFabricTicket(cut).ok()) << size << " bytes";
  }
  for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    Bytes flipped = bytes;
    flipped[bit / 8] ^= static_cast<std::uint8_t>(1 << bit % 8);
    EXPECT_FALSE(DecodeFabricTicket(flipped).ok()) << "bit " << bit;
  }
}

TEST(FabricTicket, SaysWhatIsWrongWithIt) {
  const Bytes bytes = EncodeFabricTicket(SampleFabricTicket(2));
  ExpectRefused({}, "0 bytes");
  ExpectRefused(Bytes(bytes.begin(), bytes.begin() + 192), "192 bytes for 2");
  Bytes longer = bytes;
  longer.insert(longer.end(), 64, 0);
  ExpectRefused(longer, "388 bytes for 2 chunks; expected 324");
  Bytes changed = bytes;
  changed[200] ^= 1;
  ExpectRefused(changed, "checksum");
  Bytes newer = bytes;
  newer[8] = 2;
  EXPECT_EQ(DecodeFabricTicket(newer).status().code(),
            absl::StatusCode::kUnimplemented);
}

// The bytes of a descriptor's ticket are no fabric ticket, whatever comes
// behind them.
TEST(Pitfall06, FabricBytesAreNeverReadAsADescriptor) {
  FabricTicket ticket = SampleFabricTicket(1);
  Bytes bytes = EncodeFabricTicket(ticket);
  ticket.ticket.kind = HandleKind::kPosixFd;
  const Bytes head = EncodeTicket(ticket.ticket);
  std::copy(head.begin(), head.end(), bytes.begin());
  RepairChecksum(bytes);
  ExpectRefused(bytes, "shared as POSIX fd");
}

}  // namespace
}  // namespace vmm
