#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "vmm/job/barrier.h"
#include "vmm/job/internal/barrier_protocol.h"

namespace vmm::barrier {
namespace {

FenceTicket TicketOf(std::uint32_t slot) {
  FenceTicket ticket;
  ticket.domain.bytes.fill(3);
  ticket.segment = 1;
  ticket.slot = slot;
  ticket.generation = slot + 1;
  ticket.offset = slot * kFenceBytes;
  return ticket;
}

Offer Sample(std::uint32_t size) {
  Offer offer{1, "pool", {}};
  for (std::uint32_t i = 0; i < size; ++i) offer.fences.push_back(TicketOf(i));
  return offer;
}

TEST(BarrierOffer, HasTheBytesThatAreDocumented) {
  const std::vector<std::uint8_t> bytes = EncodeOffer(Sample(2));
  ASSERT_EQ(bytes.size(), 12 + 2 * kFenceTicketBytes + 2 + 4);
  EXPECT_EQ(std::vector<std::uint8_t>(bytes.begin(), bytes.begin() + 12),
            (std::vector<std::uint8_t>{2, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0}));
  EXPECT_EQ(std::vector<std::uint8_t>(bytes.end() - 6, bytes.end()),
            (std::vector<std::uint8_t>{4, 0, 'p', 'o', 'o', 'l'}));
}

TEST(BarrierOffer, ComesBackAsItWas) {
  for (std::uint32_t size : {2u, 5u, kMaxBarrierMembers}) {
    Offer offer = Sample(size);
    offer.rank = size - 1;
    const auto back = DecodeOffer(EncodeOffer(offer));
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(back->rank, offer.rank);
    EXPECT_EQ(back->pool, offer.pool);
    EXPECT_EQ(back->fences, offer.fences);
  }
}

TEST(BarrierOffer, ThatIsCutOrOfNoBarrierIsDataLoss) {
  const std::vector<std::uint8_t> bytes = EncodeOffer(Sample(3));
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_EQ(
        DecodeOffer(absl::MakeConstSpan(bytes).first(size)).status().code(),
        absl::StatusCode::kDataLoss)
        << size;
  }
  std::vector<std::uint8_t> more = bytes;
  more.push_back(0);
  EXPECT_EQ(DecodeOffer(more).status().code(), absl::StatusCode::kDataLoss);
  std::vector<std::uint8_t> none = bytes;
  none[0] = 0;
  EXPECT_EQ(DecodeOffer(none).status().code(), absl::StatusCode::kDataLoss);
  for (std::uint32_t version : {1u, 3u}) {
    std::vector<std::uint8_t> other = bytes;
    other[0] = static_cast<std::uint8_t>(version);
    EXPECT_EQ(DecodeOffer(other).status(),
              absl::UnimplementedError(absl::StrCat(
                  "a barrier of version ", version,
                  " is offered; this vmmshare reads version 2. Use the same "
                  "release in all ranks")));
    // Too short to have a version.
    EXPECT_EQ(DecodeOffer(absl::MakeConstSpan(other).first(3)).status().code(),
              absl::StatusCode::kDataLoss);
  }
  Offer offer = Sample(3);
  for (std::uint32_t rank : {0u, 3u, 64u}) {
    offer.rank = rank;
    EXPECT_EQ(DecodeOffer(EncodeOffer(offer)).status().code(),
              absl::StatusCode::kDataLoss);
  }
  for (std::uint32_t size : {0u, 1u, kMaxBarrierMembers + 1}) {
    EXPECT_EQ(DecodeOffer(EncodeOffer(Sample(size))).status().code(),
              absl::StatusCode::kDataLoss);
  }
  offer = Sample(3);
  offer.fences[1].generation = 0;
  EXPECT_EQ(DecodeOffer(EncodeOffer(offer)).status().code(),
            absl::StatusCode::kDataLoss);
  std::vector<std::uint8_t> newer = bytes;
  newer[0] = 3;
  EXPECT_EQ(DecodeOffer(newer).status().code(),
            absl::StatusCode::kUnimplemented);
}

TEST(BarrierGone, ComesBackAndIsRefusedWhenItIsNone) {
  for (const Gone& gone : {Gone{0, false}, Gone{4, true}}) {
    const auto back = DecodeGone(EncodeGone(gone), 5);
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(back->rank, gone.rank);
    EXPECT_EQ(back->left, gone.left);
  }
  EXPECT_FALSE(DecodeGone(EncodeGone({5, true}), 5).ok());
  EXPECT_FALSE(DecodeGone({}, 5).ok());
  EXPECT_FALSE(DecodeGone(std::vector<std::uint8_t>(9), 5).ok());
  EXPECT_FALSE(DecodeGone({{1, 0, 0, 0, 2, 0, 0, 0}}, 5).ok());
}

}  // namespace
}  // namespace vmm::barrier
