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

TEST(JobRow, IsRefusedWhenItsRunsDoNotFit) {
  struct Case {
    std::uint32_t rank, ranks, count;
    std::uint8_t kinds;
    const char* why;
  };
  for (const Case& one :
       {Case{0, 60000, 60001, 0, "tries with 60001 ranks"},
        Case{0, 1, 0, 0, "tries with 0 ranks"}, Case{0, 1, 1, 5, "5 tries"},
        Case{2, 2, 2, 0, "rank 2 of 2"},
        Case{0, kMaxRanks + 1, 1, 0, "rank 0 of 65537"},
        Case{0, 2, 1, 0, "0 tries with 0 ranks from rank 1 on"}}) {
    Bytes body;
    platform::WireWriter out(body);
    out.Put(one.rank);
    out.Put(one.ranks);
    out.Put(one.count);
    out.Put(one.kinds);
    EXPECT_THAT(Message(DecodeRow(SealRecord(RecordType::kRow, body)).status()),
                HasSubstr(one.why));
  }
}

TEST(JobRow, OfARankThatTriedItsOwnMemoryIsRefused) {
  JobRow row(1);
  row.Append({{CU_MEM_HANDLE_TYPE_FABRIC, {}}}, 3);
  EXPECT_THAT(Message(DecodeRow(EncodeRow(row)).status()),
              HasSubstr("rank 1 tried its own memory"));
}

TEST(JobRow, SaysWhatWasFoundWithEachOwner) {
  const JobTry works = {CU_MEM_HANDLE_TYPE_FABRIC, {}};
  const JobTry by_cards = {CU_MEM_HANDLE_TYPE_FABRIC, {}, true};
  JobRow row(0);
  row.Append({});
  row.Append({works});
  row.Append({works}, 2);
  row.Append({by_cards}, 0);
  row.Append({by_cards, works});
  ASSERT_EQ(row.size(), 5u);
  EXPECT_TRUE(row.With(0).empty());
  EXPECT_EQ(row.With(1), row.With(3));
  EXPECT_FALSE(row.With(4)[0].ok());
  EXPECT_TRUE(row.With(4)[1].ok());
  EXPECT_EQ(*DecodeRow(EncodeRow(row)), row);
}

// 144 nodes of four ranks each, as they see each other from `rank`.
JobRow RowOfALargeJob(std::uint32_t rank, bool fabric) {
  JobRow row(rank);
  for (std::uint32_t owner = 0; owner < 576; ++owner) {
    std::vector<JobTry> tries;
    if (owner / 4 != rank / 4) {
      tries = {{CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, {}, true},
               {CU_MEM_HANDLE_TYPE_FABRIC, {}, !fabric}};
    } else if (owner != rank) {
      tries = {{CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, {}}};
    }
    row.Append(std::move(tries));
  }
  return row;
}

TEST(JobRow, OfALargeJobIsShortWhetherFabricWorksOrNot) {
  for (const bool fabric : {true, false}) {
    for (const std::uint32_t rank : {0, 301, 575}) {
      EXPECT_LE(EncodeRow(RowOfALargeJob(rank, fabric)).size(), 100u);
    }
  }
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

TEST(Refusal, SaysItsIdOnce) {
  const Refusal one = {absl::StatusCode::kUnavailable, {"id", "text", "Do it"}};
  EXPECT_EQ(one.ToStatus("who").message(), "who: text [id]. Do it");
  const Refusal several = {absl::StatusCode::kUnavailable,
                           {"id", "fd: a [id]. fabric: b [other]", "Do it"}};
  EXPECT_EQ(several.ToStatus("who").message(),
            "who: fd: a [id]. fabric: b [other]. Do it");
}

TEST(JobMatrix, ChoosesTheFirstKindThatWorked) {
  const JobMatrix matrix = Matrix({SampleRow(0, 2), SampleRow(1, 2)});
  EXPECT_EQ(matrix.Chosen(0, 1), CU_MEM_HANDLE_TYPE_FABRIC);
  EXPECT_TRUE(matrix.AllReach().ok());
}

TEST(JobMatrix, SaysWhyNotWithRanksDevicesKindsAndRemedies) {
  std::vector<JobTry> tries = SampleRow(0, 2).With(1);
  tries[1].refusal = {
      absl::StatusCode::kPermissionDenied,
      {"no-channel", "there is no channel node", "Make one: mknod."}};
  JobRow row(0);
  row.Append({});
  row.Append(tries);
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

TEST(JobMatrix, SaysWhatTheCardsTellThoughNoRowDoes) {
  JobRow row(0);
  row.Append({});
  row.Append({{CU_MEM_HANDLE_TYPE_FABRIC, {}, true}});
  const absl::Status status = Matrix({row, SampleRow(1, 2)}).AllReach();
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
  EXPECT_THAT(Message(status),
              AllOf(HasSubstr("rank 0 (host node0, GPU-00"),
                    HasSubstr("fabric: rank 1 (host node1, GPU-01"),
                    HasSubstr("there is no channel [no-channel]. mknod")));
}

TEST(JobMatrix, SaysThatARowIsWrongAboutTheCards) {
  JobRow row(0);
  row.Append({});
  row.Append({{CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, {}, true}});
  std::vector<absl::StatusOr<JobCard>> cards = {SampleCard(0, 2),
                                                SampleCard(1, 2)};
  cards[1]->boot_id = cards[0]->boot_id;
  const JobMatrix matrix(std::move(cards), {row, SampleRow(1, 2)});
  EXPECT_THAT(Message(matrix.WhyNot(0, 1)), HasSubstr("[not-tried]"));
  EXPECT_EQ(matrix.Chosen(0, 1), std::nullopt);
}

}  // namespace
}  // namespace vmm::fabric
