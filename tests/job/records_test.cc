// What ranks tell each other, as bytes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "fabric/job_card.h"
#include "fabric/job_matrix.h"
#include "fabric/job_record.h"
#include "tests/job/samples.h"

namespace vmm::fabric {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::SampleCard;
using testing::SampleRow;

std::string Message(const absl::Status& status) {
  return std::string(status.message());
}

TEST(JobCard, IsReadAsItWasWritten) {
  const absl::StatusOr<JobCard> read = DecodeCard(EncodeCard(SampleCard(2, 5)));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, SampleCard(2, 5));
}

TEST(JobCard, OfARankInTroubleIsReadAsItWasWritten) {
  JobCard card;
  card.rank = 1;
  card.ranks = 2;
  card.trouble = {absl::StatusCode::kNotFound, {"no-device", "none", "buy"}};
  const absl::StatusOr<JobCard> read = DecodeCard(EncodeCard(card));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, card);
  EXPECT_EQ(read->Describe(), "rank 1 (host , no device)");
}

TEST(JobCard, WithAnyBitFlippedIsRefused) {
  const Bytes good = EncodeCard(SampleCard(0, 2));
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    Bytes bytes = good;
    bytes[bit / 8] ^= static_cast<std::uint8_t>(1 << bit % 8);
    ASSERT_FALSE(DecodeCard(bytes).ok()) << bit;
  }
}

TEST(JobCard, CutAnywhereIsRefused) {
  const Bytes good = EncodeCard(SampleCard(0, 2));
  for (std::size_t size = 0; size < good.size(); ++size) {
    ASSERT_TRUE(absl::IsInvalidArgument(
        DecodeCard(absl::MakeSpan(good).subspan(0, size)).status()))
        << size;
  }
}

TEST(JobCard, OfAnotherVersionSaysWhatToInstall) {
  Bytes bytes = EncodeCard(SampleCard(0, 2));
  bytes[4] = 9;
  const absl::Status status = DecodeCard(bytes).status();
  EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
  EXPECT_THAT(Message(status), AllOf(HasSubstr("version 9"),
                                     HasSubstr("Install the same vmmshare")));
}

TEST(JobCard, CannotOfferAKindBothWithATicketAndAReason) {
  JobCard card = SampleCard(0, 2);
  card.offers[0].refusal = {absl::StatusCode::kInternal, {"x", "y", "z"}};
  EXPECT_FALSE(DecodeCard(EncodeCard(card)).ok());
  card = SampleCard(0, 2);
  card.offers[0].ticket.clear();
  EXPECT_FALSE(DecodeCard(EncodeCard(card)).ok());
  card = SampleCard(0, 2);
  card.offers.push_back(card.offers[0]);
  EXPECT_THAT(Message(DecodeCard(EncodeCard(card)).status()),
              HasSubstr("two offers of fd"));
}

TEST(JobCard, TextsOfAPeerAreMadePrintable) {
  JobCard card = SampleCard(0, 2);
  card.host_name = "a\x1b[31m\nb";
  card.device_name = std::string(2000, 'x');
  const absl::StatusOr<JobCard> read = DecodeCard(EncodeCard(card));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->host_name, "a?[31m?b");
  EXPECT_EQ(read->device_name.size(), kMaxText);
}

TEST(ReadCards, NamesTheRankThatDoesNotFit) {
  std::vector<absl::StatusOr<Bytes>> records = {EncodeCard(SampleCard(0, 2)),
                                                EncodeCard(SampleCard(1, 2))};
  EXPECT_TRUE(ReadCards(records).ok());
  records[1] = EncodeCard(SampleCard(0, 2));
  EXPECT_THAT(Message(ReadCards(records).status()),
              HasSubstr("the card of rank 1 says that it is rank 0 of 2"));
  records[1] = EncodeCard(SampleCard(1, 3));
  EXPECT_THAT(Message(ReadCards(records).status()),
              HasSubstr("is rank 1 of 3; expected rank 1 of 2"));
  records[1] = Bytes{1, 2, 3};
  EXPECT_TRUE(absl::IsFailedPrecondition(ReadCards(records).status()));
  records[1] = absl::NotFoundError("nothing");
  EXPECT_TRUE(absl::IsNotFound(ReadCards(records).status()));
}

TEST(JobRow, IsReadAsItWasWritten) {
  const absl::StatusOr<JobRow> read = DecodeRow(EncodeRow(SampleRow(1, 3)));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, SampleRow(1, 3));
}

TEST(JobRow, CutOrFlippedAnywhereIsRefused) {
  const Bytes good = EncodeRow(SampleRow(1, 3));
  for (std::size_t size = 0; size < good.size(); ++size) {
    ASSERT_FALSE(DecodeRow(absl::MakeSpan(good).subspan(0, size)).ok());
  }
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    Bytes bytes = good;
    bytes[bit / 8] ^= static_cast<std::uint8_t>(1 << bit % 8);
    ASSERT_FALSE(DecodeRow(bytes).ok()) << bit;
  }
}

TEST(JobRow, CannotClaimMoreRanksThanBytesCame) {
  Bytes body;
  platform::WireWriter out(body);
  out.Put<std::uint32_t>(0);
  out.Put<std::uint32_t>(60000);
  EXPECT_FALSE(DecodeRow(SealRecord(RecordType::kRow, body)).ok());
}

TEST(Verdict, IsReadAsItWasWritten) {
  const Refusal refusal = {absl::StatusCode::kDataLoss, {"a", "b", "c"}};
  EXPECT_EQ(*DecodeVerdict(EncodeVerdict(refusal)), refusal);
  EXPECT_TRUE(DecodeVerdict(EncodeVerdict({}))->empty());
  EXPECT_FALSE(DecodeVerdict(EncodeCard(SampleCard(0, 1))).ok());
}

JobMatrix Matrix(const std::vector<JobRow>& rows) {
  std::vector<absl::StatusOr<JobCard>> cards;
  for (std::uint32_t rank = 0; rank < rows.size(); ++rank) {
    cards.emplace_back(
        SampleCard(rank, static_cast<std::uint32_t>(rows.size())));
  }
  return JobMatrix(std::move(cards), std::vector<absl::StatusOr<JobRow>>(
                                         rows.begin(), rows.end()));
}

TEST(JobMatrix, ChoosesTheFirstKindThatWorked) {
  const JobMatrix matrix = Matrix({SampleRow(0, 2), SampleRow(1, 2)});
  EXPECT_EQ(matrix.Chosen(0, 1), CU_MEM_HANDLE_TYPE_FABRIC);
  EXPECT_TRUE(matrix.AllReach().ok());
}

TEST(JobMatrix, SaysWhyNotWithRanksDevicesKindsAndRemedies) {
  JobRow row = SampleRow(0, 2);
  row.owners[1][1].refusal = {
      absl::StatusCode::kPermissionDenied,
      {"no-channel", "there is no channel node", "Make one: mknod."}};
  const JobMatrix matrix = Matrix({row, SampleRow(1, 2)});
  EXPECT_EQ(matrix.Chosen(0, 1), std::nullopt);
  const absl::Status status = matrix.AllReach();
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
  EXPECT_THAT(Message(status),
              AllOf(HasSubstr("rank 0 (host node0, GPU-00"),
                    HasSubstr("cannot reach memory of rank 1 (host node1, "),
                    HasSubstr("fd: two hosts [other-host]. fabric: there is no "
                              "channel node [no-channel]. Make one: mknod.")));
}

}  // namespace
}  // namespace vmm::fabric
