#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "vmm/memory/internal/wire.h"
#include "vmm/sync/ipc_event.h"

namespace vmm {
namespace {

using ::testing::HasSubstr;

IpcEventTicket Sample() {
  IpcEventTicket ticket;
  ticket.host_memory_driver = true;
  ticket.owner.bytes.fill(0xa1);
  ticket.boot_id.fill(0xb2);
  for (std::size_t i = 0; i < ticket.handle.size(); ++i) {
    ticket.handle[i] = static_cast<std::uint8_t>(i);
  }
  return ticket;
}

std::vector<std::uint8_t> BytesOf(const IpcEventTicket& ticket) {
  const IpcEventTicketBytes bytes = EncodeIpcEventTicket(ticket);
  return {bytes.begin(), bytes.end()};
}

// With the checksum put right.
absl::Status ErrorOf(std::vector<std::uint8_t> bytes) {
  bytes.resize(kIpcEventTicketBytes - 4);
  WireWriter(bytes).Put<std::uint32_t>(Crc32c(bytes));
  return DecodeIpcEventTicket(bytes).status();
}

TEST(IpcEventTicket, HasTheBytesThatAreDocumented) {
  const std::vector<std::uint8_t> bytes = BytesOf(Sample());
  ASSERT_EQ(bytes.size(), 108u);
  EXPECT_EQ(std::vector<std::uint8_t>(bytes.begin(), bytes.begin() + 8),
            (std::vector<std::uint8_t>{'V', 'E', 'T', 1, 1, 0, 0, 0}));
  EXPECT_EQ(bytes[8], 0xa1);
  EXPECT_EQ(bytes[23], 0xa1);
  EXPECT_EQ(bytes[24], 0xb2);
  EXPECT_EQ(bytes[39], 0xb2);
  EXPECT_EQ(bytes[40], 0);
  EXPECT_EQ(bytes[103], 63);
}

TEST(IpcEventTicket, ComesBackAsItWas) {
  for (const bool host : {true, false}) {
    IpcEventTicket ticket = Sample();
    ticket.host_memory_driver = host;
    const auto back = DecodeIpcEventTicket(EncodeIpcEventTicket(ticket));
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(*back, ticket);
  }
}

TEST(IpcEventTicket, AnyFlippedBitAndAnyOtherSizeIsRefused) {
  const std::vector<std::uint8_t> good = BytesOf(Sample());
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::vector<std::uint8_t> bytes = good;
    bytes[bit / 8] ^= static_cast<std::uint8_t>(1 << bit % 8);
    EXPECT_FALSE(DecodeIpcEventTicket(bytes).ok()) << bit;
  }
  for (std::size_t size = 0; size < 2 * good.size(); ++size) {
    std::vector<std::uint8_t> bytes = good;
    bytes.resize(size);
    EXPECT_EQ(DecodeIpcEventTicket(bytes).ok(), size == good.size()) << size;
  }
}

TEST(IpcEventTicket, SaysWhatIsWrong) {
  std::vector<std::uint8_t> bytes = BytesOf(Sample());
  bytes[0] = 'X';
  EXPECT_THAT(std::string(ErrorOf(bytes).message()), HasSubstr("\"VET\""));
  bytes = BytesOf(Sample());
  bytes[3] = 2;
  EXPECT_EQ(ErrorOf(bytes).code(), absl::StatusCode::kUnimplemented);
  bytes[3] = 0;
  EXPECT_THAT(std::string(ErrorOf(bytes).message()), HasSubstr("no version 0"));
  bytes = BytesOf(Sample());
  bytes[4] = 2;
  EXPECT_THAT(std::string(ErrorOf(bytes).message()), HasSubstr("of driver 2"));
  bytes[4] = 0;
  bytes[7] = 1;
  EXPECT_THAT(std::string(ErrorOf(bytes).message()), HasSubstr("of driver"));
}

}  // namespace
}  // namespace vmm
