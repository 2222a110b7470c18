// What `vmmshare doctor --job` prints of a job.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "fabric/job_matrix.h"
#include "tests/job/samples.h"
#include "vmm/tool/job.h"

namespace vmm::tool {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using testing::SampleCard;
using testing::SampleRow;

std::size_t CountOf(const std::string& words, const std::string& text) {
  std::size_t count = 0;
  for (std::size_t at = text.find(words); at != std::string::npos;
       at = text.find(words, at + 1)) {
    ++count;
  }
  return count;
}

// A job of `ranks` on hosts of `per_host`, on which ranks reach each other. Of
// those on other hosts the cards tell why not.
JobReport JobOf(std::uint32_t ranks, std::uint32_t per_host) {
  const std::vector<fabric::JobTry> within = {
      {CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, {}}};
  std::vector<absl::StatusOr<fabric::JobCard>> cards;
  std::vector<absl::StatusOr<fabric::JobRow>> rows;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    fabric::JobCard card = SampleCard(rank, ranks);
    card.host_name = absl::StrCat("node", rank / per_host);
    card.boot_id.fill(static_cast<std::uint8_t>(rank / per_host + 1));
    fabric::JobRow row(rank);
    for (std::uint32_t owner = 0; owner < ranks; ++owner) {
      std::vector<fabric::JobTry> between(2);
      between[0].kind = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
      between[1].kind = CU_MEM_HANDLE_TYPE_FABRIC;
      for (fabric::JobTry& one : between) one.by_cards = true;
      row.Append(owner == rank ? std::vector<fabric::JobTry>{}
                 : owner / per_host == rank / per_host ? within
                                                       : between);
    }
    cards.emplace_back(std::move(card));
    rows.emplace_back(std::move(row));
  }
  JobReport report{"j",
                   "PMIx",
                   0,
                   fabric::JobMatrix(std::move(cards), std::move(rows)),
                   absl::OkStatus(),
                   std::nullopt};
  return report;
}

TEST(ToolJob, PairsThatCannotForTheSameReasonAreOneReason) {
  const std::string text = AsText(JobOf(6, 2));
  EXPECT_THAT(text, HasSubstr("0-1 from 2-5; 2-3 from 0-1, 4-5; 4-5 from 0-3"));
  EXPECT_THAT(text, HasSubstr("of 0 from 2: "));
  EXPECT_EQ(CountOf("to do:", text), 2u)
      << text;  // And once of rank 0's fabric.
}

TEST(ToolJob, APageOfAJobGrowsWithItsRanksAndNotWithItsPairs) {
  const std::size_t few = AsText(JobOf(36, 4)).size();
  const std::size_t many = AsText(JobOf(144, 4)).size();
  EXPECT_LT(many, 6 * few);
}

// Of two ranks, of which the second did not answer.
JobReport Halved() {
  std::vector<absl::StatusOr<fabric::JobCard>> cards;
  std::vector<absl::StatusOr<fabric::JobRow>> rows;
  cards.emplace_back(SampleCard(0, 2));
  cards.emplace_back(absl::DeadlineExceededError("rank 1 was silent"));
  rows.emplace_back(SampleRow(0, 2));
  rows.emplace_back(absl::DeadlineExceededError("rank 1 was silent"));
  return {"j",
          "PMIx",
          0,
          fabric::JobMatrix(std::move(cards), std::move(rows)),
          absl::DeadlineExceededError("1 of 2 ranks did not answer"),
          std::nullopt};
}

TEST(ToolJob, ARankThatDidNotAnswerIsShownAsThat) {
  const JobReport report = Halved();
  EXPECT_EQ(report.exit_code(), kExitNotUsable);
  const std::string text = AsText(report);
  EXPECT_THAT(text, HasSubstr("rank 1          no answer"));
  EXPECT_THAT(text, HasSubstr("1 of 2 ranks did not answer"));
  const nlohmann::json json = nlohmann::json::parse(AsJson(report));
  EXPECT_EQ(json["exit_code"], kExitNotUsable);
  EXPECT_EQ(json["error"]["code"], "DEADLINE_EXCEEDED");
  EXPECT_EQ(json["verdict"]["message"], "1 of 2 ranks did not answer");
  EXPECT_TRUE(json["required"].is_null());
  EXPECT_TRUE(json["ranks"][0]["error"].is_null());
  EXPECT_EQ(json["ranks"][0]["host"], "node0");
  EXPECT_EQ(json["ranks"][0]["clique"], 7);
  EXPECT_EQ(json["ranks"][0]["kinds"][1]["reason"]["id"], "no-channel");
  EXPECT_EQ(json["ranks"][1]["error"]["message"], "rank 1 was silent");
  EXPECT_FALSE(json["ranks"][1].contains("host"));
  // Of rank 1 it is not known what it found.
  EXPECT_EQ(json["pairs"][1]["importer"], 1);
  EXPECT_TRUE(json["pairs"][1]["kind"].is_null());
  EXPECT_EQ(json["pairs"][1]["error"]["code"], "DEADLINE_EXCEEDED");
  EXPECT_EQ(json["pairs"][1]["tries"].size(), 0u);
}

TEST(ToolJob, ARankWithoutADeviceOrADomainHasNullForThem) {
  std::vector<absl::StatusOr<fabric::JobCard>> cards;
  std::vector<absl::StatusOr<fabric::JobRow>> rows;
  fabric::JobCard card = SampleCard(0, 1);
  card.device_name.clear();
  card.domain.reset();
  card.trouble = {absl::StatusCode::kNotFound,
                  {"no-device", "there is no device", "Give it one."}};
  cards.emplace_back(std::move(card));
  rows.emplace_back(fabric::JobRow(0));
  const JobReport report{"j",
                         "PMIx",
                         0,
                         fabric::JobMatrix(std::move(cards), std::move(rows)),
                         absl::OkStatus(),
                         std::nullopt};
  const nlohmann::json json = nlohmann::json::parse(AsJson(report));
  const nlohmann::json& rank = json["ranks"][0];
  for (const char* null : {"device", "uuid", "cluster", "clique"}) {
    EXPECT_TRUE(rank[null].is_null()) << null;
  }
  EXPECT_EQ(rank["trouble"]["remedy"], "Give it one.");
  EXPECT_EQ(json["verdict"]["code"], "NOT_FOUND");
  EXPECT_THAT(AsText(report), HasSubstr("host node0, no device"));
}

TEST(ToolJob, TheKindThatIsRequiredDecides) {
  JobReport report = JobOf(2, 2);
  EXPECT_EQ(report.exit_code(), kExitGood);
  EXPECT_THAT(AsText(report), HasSubstr("written, read"));
  report.required = HandleKind::kPosixFd;
  EXPECT_EQ(report.exit_code(), kExitGood);
  EXPECT_THAT(AsText(report), HasSubstr("one's memory as POSIX fd"));
  const nlohmann::json json = nlohmann::json::parse(AsJson(report));
  EXPECT_EQ(json["required"], "fd");
  EXPECT_TRUE(json["verdict"].is_null());
  EXPECT_EQ(json["pairs"][0]["kind"], "fd");
  EXPECT_EQ(json["pairs"][0]["tries"][0]["usable"], true);
  // None has tried it.
  report.required = HandleKind::kFabric;
  EXPECT_EQ(report.exit_code(), kExitNotUsable);
  EXPECT_EQ(report.Verdict().message(),
            "--require=fabric: rank 0 does not try it with rank 1");
}

TEST(ToolJob, TheFirstRankThatAnsweredPrintsAndCarriesTheVerdict) {
  JobReport report = Halved();
  EXPECT_TRUE(report.prints());
  report.rank = 1;
  EXPECT_FALSE(report.prints());
  EXPECT_EQ(report.exit_code(), kExitGood);
}

TEST(ToolJob, AReasonThatIsInTheSameWordsForAllNamesNoPair) {
  const std::string text = AsText(JobOf(2, 1));
  EXPECT_THAT(text, HasSubstr("of 0 from 1: "));
  EXPECT_THAT(AsText(JobOf(2, 2)), Not(HasSubstr("why:    of")));
}

}  // namespace
}  // namespace vmm::tool
