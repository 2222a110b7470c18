// Who reaches whose memory, as cards and rows tell it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
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

constexpr auto kFd = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
constexpr auto kNt = CU_MEM_HANDLE_TYPE_WIN32;
constexpr auto kFabric = CU_MEM_HANDLE_TYPE_FABRIC;

std::string Message(const absl::Status& status) {
  return std::string(status.message());
}

// Two ranks of one host.
class RefusedByCardsTest : public ::testing::Test {
 protected:
  RefusedByCardsTest() { owner_.boot_id = importer_.boot_id; }

  Refusal Of(CUmemAllocationHandleType kind) const {
    return RefusedByCards(importer_, owner_, kind);
  }

  JobCard importer_ = SampleCard(0, 2);
  JobCard owner_ = SampleCard(1, 2);
};

TEST_F(RefusedByCardsTest, OfAnOfferThatCanBeTriedIsEmpty) {
  EXPECT_TRUE(Of(kFd).empty());
}

TEST_F(RefusedByCardsTest, OfAnOfferWithoutATicketSaysTheOwnersReason) {
  const Refusal refusal = Of(kFabric);
  EXPECT_EQ(refusal.code, absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(refusal.finding.id, "no-channel");
  EXPECT_THAT(refusal.finding.text, HasSubstr("rank 1 (host node1, "));
}

TEST_F(RefusedByCardsTest, OfAKindThatTheOwnerDoesNotSpeakOfNamesBoth) {
  const Refusal refusal = Of(kNt);
  EXPECT_EQ(refusal.code, absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(refusal.finding.id, "not-offered");
  EXPECT_THAT(refusal.finding.text, AllOf(HasSubstr("rank 1 (host node1, "),
                                          HasSubstr("does not share as nt")));
  EXPECT_THAT(refusal.finding.remedy, HasSubstr("same policy"));
}

TEST_F(RefusedByCardsTest, OfTwoKindsOfDriverNamesTheRankWithoutAGpu) {
  for (const bool importer_has_none : {true, false}) {
    importer_.host_memory_driver = importer_has_none;
    owner_.host_memory_driver = !importer_has_none;
    const Refusal refusal = Of(kFd);
    EXPECT_EQ(refusal.code, absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(refusal.finding.id, "other-driver");
    EXPECT_THAT(refusal.finding.text,
                AllOf(HasSubstr(importer_has_none ? "rank 0 " : "rank 1 "),
                      HasSubstr("uses the host-memory driver, the other")));
    EXPECT_THAT(refusal.finding.remedy, HasSubstr("--driver"));
  }
  owner_.host_memory_driver = importer_.host_memory_driver = true;
  EXPECT_TRUE(Of(kFd).empty());
}

TEST_F(RefusedByCardsTest, OfTwoHostsKeepsAllButFabricHandlesAtHome) {
  owner_.boot_id[0] ^= 1;
  EXPECT_EQ(Of(kFd).finding.id, kOtherHost);
  EXPECT_EQ(Of(kNt).finding.id, kOtherHost);
  EXPECT_EQ(Of(kFabric).finding.id, "no-channel");
  owner_.offers[1] = {kFabric, "a ticket", {}};
  EXPECT_TRUE(Of(kFabric).empty());
}

TEST_F(RefusedByCardsTest, OfARankInTroubleSaysThatAlone) {
  owner_.trouble = {absl::StatusCode::kNotFound, {"no-device", "none", "buy"}};
  EXPECT_EQ(Of(kFd).finding.id, "no-device");
  EXPECT_THAT(Of(kFd).finding.text, HasSubstr("rank 1 (host node1, "));
  importer_.trouble = {absl::StatusCode::kInternal, {"no-context", "x", "y"}};
  EXPECT_EQ(Of(kFd).finding.id, "no-context");
  EXPECT_THAT(Of(kFd).finding.text, HasSubstr("rank 0 (host node0, "));
}

TEST(KindName, IsUnknownOfWhatNoRankShares) {
  EXPECT_EQ(KindName(kFd), "fd");
  EXPECT_EQ(KindName(kNt), "nt");
  EXPECT_EQ(KindName(kFabric), "fabric");
  EXPECT_EQ(KindName(CU_MEM_HANDLE_TYPE_NONE), "unknown");
}

// What ranks compare cards for: each field counts.
TEST(JobCard, IsAnotherInAnotherDomain) {
  const JobCard card = SampleCard(0, 2);
  JobCard other = card;
  other.domain->clique = 8;
  EXPECT_NE(other, card);
  other = card;
  other.domain->cluster[0] = 9;
  EXPECT_NE(other, card);
  other.domain.reset();
  EXPECT_NE(other, card);
}

TEST(JobRecord, LongerThanAnyIsRefusedBeforeItIsRead) {
  const Bytes bytes = EncodeCard(SampleCard(0, 2));
  const absl::Status status =
      DecodeCard(absl::MakeConstSpan(bytes.data(), kMaxRecord + 1)).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(Message(status), HasSubstr("67108865 bytes; expected 16 to "));
}

JobTry Refused(CUmemAllocationHandleType kind, const std::string& id) {
  return {kind, {absl::StatusCode::kFailedPrecondition, {id, "a text", "Do"}}};
}

// Were neighbours kept as one that differ in anything, one of them would be told
// another's reason.
TEST(JobRow, KeepsNeighboursApartThatDifferInAnything) {
  JobTry by_cards = Refused(kFd, "a");
  by_cards.by_cards = true;
  JobTry otherwise = Refused(kFd, "a");
  otherwise.refusal.finding.remedy = "Do it";
  JobTry of_code = Refused(kFd, "a");
  of_code.refusal.code = absl::StatusCode::kUnavailable;
  JobTry of_text = Refused(kFd, "a");
  of_text.refusal.finding.text = "another text";
  const std::vector<JobTry> all = {Refused(kFd, "a"),
                                   by_cards,
                                   Refused(kFd, "b"),
                                   Refused(kFabric, "a"),
                                   otherwise,
                                   of_code,
                                   of_text};
  JobRow row(0);
  row.Append({});
  for (const JobTry& one : all) row.Append({one});
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(row.With(static_cast<std::uint32_t>(i + 1)),
              std::vector<JobTry>{all[i]})
        << i;
  }
}

TEST(ReadRows, NamesTheRankThatDoesNotFit) {
  std::vector<absl::StatusOr<Bytes>> records = {EncodeRow(SampleRow(0, 2)),
                                                EncodeRow(SampleRow(1, 2))};
  ASSERT_TRUE(ReadRows(records).ok());
  EXPECT_EQ((*ReadRows(records))[1], SampleRow(1, 2));
  records[1] = EncodeRow(SampleRow(0, 2));
  EXPECT_THAT(Message(ReadRows(records).status()),
              HasSubstr("the row of rank 1 is of rank 0 of 2 ranks; expected "
                        "rank 1 of 2"));
  records[1] = EncodeRow(SampleRow(1, 3));
  EXPECT_THAT(Message(ReadRows(records).status()),
              HasSubstr("is of rank 1 of 3 ranks; expected rank 1 of 2"));
  records[1] = absl::NotFoundError("nothing");
  EXPECT_TRUE(absl::IsNotFound(ReadRows(records).status()));
}

TEST(ReasonsText, LeavesOutWhatWorkedAndSaysAReasonOfTwoKindsOnce) {
  const std::vector<JobTry> tries = {{kFabric, {}},
                                     Refused(kFd, "no-device"),
                                     Refused(kNt, "no-device"),
                                     Refused(kFabric, "other")};
  EXPECT_EQ(ReasonsText(tries),
            "fd, nt: a text [no-device]. fabric: a text [other]");
}

TEST(Telling, IsThatTwoHostsAreTwoOnlyWhereNothingElseIsWrong) {
  const std::vector<JobTry> hosts = {Refused(kFd, kOtherHost),
                                     Refused(kNt, kOtherHost)};
  EXPECT_EQ(Telling(hosts).kind, kNt);
  const std::vector<JobTry> more = {Refused(kFd, kOtherHost),
                                    Refused(kFabric, "no-channel"),
                                    Refused(kNt, kOtherHost)};
  EXPECT_EQ(Telling(more).refusal.finding.id, "no-channel");
}

TEST(JobMatrix, OfRanksThatTriedNothingSaysThatNoKindIsCommon) {
  JobRow row(0);
  row.Append({}, 2);
  const JobMatrix matrix({SampleCard(0, 2), SampleCard(1, 2)},
                         {row, SampleRow(1, 2)});
  const absl::Status why = matrix.AllReach();
  EXPECT_TRUE(absl::IsFailedPrecondition(why)) << why;
  EXPECT_THAT(Message(why),
              AllOf(HasSubstr("rank 0 (host node0, GPU-00"),
                    HasSubstr("they have no handle kind in common")));
}

TEST(JobMatrix, OfARankWithoutACardNamesItByItsNumber) {
  JobRow row(0);
  row.Append({});
  row.Append({{kFabric, {}, true}});
  const JobMatrix matrix(
      {SampleCard(0, 2), absl::NotFoundError("no card came")},
      {row, absl::NotFoundError("no row came")});
  EXPECT_THAT(Message(matrix.WhyNot(0, 1)),
              AllOf(HasSubstr("cannot reach memory of rank 1:"),
                    HasSubstr("[not-tried]")));
  const JobMatrix other({absl::NotFoundError("no card came"), SampleCard(1, 2)},
                        {row, SampleRow(1, 2)});
  EXPECT_THAT(
      Message(other.WhyNot(0, 1)),
      AllOf(HasSubstr("rank 0 cannot reach memory of rank 1 (host node1, "),
            HasSubstr("[not-tried]")));
  const absl::Status unknown = matrix.WhyNot(1, 0);
  EXPECT_TRUE(absl::IsNotFound(unknown)) << unknown;
  EXPECT_THAT(Message(unknown), AllOf(HasSubstr("rank 1 cannot reach"),
                                      HasSubstr("no row came")));
}

}  // namespace
}  // namespace vmm::fabric
