#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "vmm/memory/internal/wire.h"
#include "vmm/queue/internal/ring_item.h"
#include "vmm/queue/internal/ring_peer.h"
#include "vmm/sync/fence.h"

namespace vmm {
namespace {

using ::testing::HasSubstr;

DomainId Id(std::uint8_t first) {
  DomainId id;
  for (std::size_t i = 0; i < 16; ++i) {
    id.bytes[i] = static_cast<std::uint8_t>(first + i);
  }
  return id;
}

RingItem Sample() {
  RingItem item;
  item.number = 0x0102030405060708;
  item.lap = 0x0000111213141516;
  item.size = 0x2122;
  item.tag = 0x3132333435363738;
  item.block = {Id(0xa0), 2, 3, 4, 0x100, 0x4142};
  item.full = {Id(0xb0), 1, 5, 6, 0x200};
  item.free = {Id(0xb0), 1, 7, 8, 0x300};
  return item;
}

absl::Status ErrorOf(const RingItem& item) {
  return DecodeRingItem(EncodeRingItem(item)).status();
}

TEST(RingItem, HasTheBytesThatAreDocumented) {
  const RingItem item = Sample();
  const RingItemBytes bytes = EncodeRingItem(item);
  std::vector<std::uint8_t> expected = {
      0x08, 0x07, 0x06, 0x05, 0x04, 0x03, 0x02, 0x01,  //
      0x16, 0x15, 0x14, 0x13, 0x12, 0x11, 0x00, 0x00,  //
      0x22, 0x21, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,  //
      0x38, 0x37, 0x36, 0x35, 0x34, 0x33, 0x32, 0x31};
  for (std::uint8_t byte : EncodePoolTicket(item.block)) {
    expected.push_back(byte);
  }
  for (std::uint8_t byte : EncodeFenceTicket(item.full)) {
    expected.push_back(byte);
  }
  for (std::uint8_t byte : EncodeFenceTicket(item.free)) {
    expected.push_back(byte);
  }
  EXPECT_EQ(std::vector<std::uint8_t>(bytes.begin(), bytes.end()), expected);
}

TEST(RingItem, ComesBackAsItWasAlsoAtItsLimits) {
  RingItem least = Sample();
  least.number = 1;
  least.lap = 1;
  least.size = 0;
  least.tag = 0;
  RingItem most = Sample();
  most.number = std::numeric_limits<std::uint64_t>::max();
  most.lap = kMaxFenceValue;
  most.size = most.block.size;
  most.tag = std::numeric_limits<std::uint64_t>::max();
  for (const RingItem& item : {Sample(), least, most}) {
    const auto back = DecodeRingItem(EncodeRingItem(item));
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(*back, item);
  }
}

TEST(RingItem, AFieldThatNoItemHasIsAnInvalidArgument) {
  struct Case {
    void (*spoil)(RingItem&);
    const char* words;
  };
  const Case cases[] = {
      {[](RingItem& i) { i.number = 0; }, "of number 0"},
      {[](RingItem& i) { i.lap = 0; }, "lap 0"},
      {[](RingItem& i) { i.lap = i.number + 1; }, "of lap"},
      {[](RingItem& i) { i.lap = kMaxFenceValue + 1; }, "of lap"},
      {[](RingItem& i) { i.size = i.block.size + 1; }, "in a block of"},
      {[](RingItem& i) { i.block.generation = 0; }, "ticket"},
      {[](RingItem& i) { i.full.segment = 0; }, "segment 0"},
      {[](RingItem& i) { i.free.slot = kPoolSlots; }, "slot 1048576"},
  };
  for (const Case& one : cases) {
    RingItem item = Sample();
    one.spoil(item);
    const absl::Status status = ErrorOf(item);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << one.words;
    EXPECT_THAT(std::string(status.message()), HasSubstr(one.words));
  }
}

TEST(RingItem, AnyOtherSizeIsAnInvalidArgument) {
  for (std::size_t size : {0u, 1u, 183u, 185u, 4096u}) {
    EXPECT_EQ(DecodeRingItem(std::vector<std::uint8_t>(size)).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST(RingOffer, ComesBackAndIsRefusedWhenItIsCutOrChanged) {
  const ring::Offer offer{8, 16 << 20, "pool", "fences"};
  const std::vector<std::uint8_t> bytes = ring::EncodeOffer(offer);
  const auto back = ring::DecodeOffer(bytes);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->buffers, 8u);
  EXPECT_EQ(back->bytes, 16u << 20);
  EXPECT_EQ(back->pool, "pool");
  EXPECT_EQ(back->fences, "fences");
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_EQ(ring::DecodeOffer(absl::MakeConstSpan(bytes).first(size))
                  .status()
                  .code(),
              absl::StatusCode::kDataLoss)
        << size;
  }
  std::vector<std::uint8_t> more = bytes;
  more.push_back(0);
  EXPECT_EQ(ring::DecodeOffer(more).status().code(),
            absl::StatusCode::kDataLoss);
  for (std::uint32_t version : {1u, 3u}) {
    std::vector<std::uint8_t> other = bytes;
    other[0] = static_cast<std::uint8_t>(version);
    EXPECT_EQ(ring::DecodeOffer(other).status(),
              absl::UnimplementedError(absl::StrCat(
                  "the writer offers a ring of version ", version,
                  "; this vmmshare reads version 2. Use the same release in "
                  "the writer and in the reader")));
    // Too short to have a version.
    EXPECT_EQ(
        ring::DecodeOffer(absl::MakeConstSpan(other).first(3)).status().code(),
        absl::StatusCode::kDataLoss);
  }
  std::vector<std::uint8_t> none = bytes;
  none[0] = 0;
  EXPECT_EQ(ring::DecodeOffer(none).status().code(),
            absl::StatusCode::kDataLoss);
  for (const ring::Offer& bad :
       {ring::Offer{0, 1, "p", "f"}, ring::Offer{65, 1, "p", "f"},
        ring::Offer{1, 0, "p", "f"}}) {
    EXPECT_EQ(ring::DecodeOffer(ring::EncodeOffer(bad)).status().code(),
              absl::StatusCode::kDataLoss);
  }
}

}  // namespace
}  // namespace vmm
