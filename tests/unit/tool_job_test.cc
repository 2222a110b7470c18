// What `vmmshare doctor --job` prints of a job.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fabric/job_matrix.h"
#include "tests/job/samples.h"
#include "vmm/tool/job.h"

namespace vmm::tool {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using testing::SampleCard;

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
JobReport Report(std::uint32_t ranks, std::uint32_t per_host) {
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
  const std::string text = AsText(Report(6, 2));
  EXPECT_THAT(text, HasSubstr("0-1 from 2-5; 2-3 from 0-1, 4-5; 4-5 from 0-3"));
  EXPECT_THAT(text, HasSubstr("of 0 from 2: "));
  EXPECT_EQ(CountOf("to do:", text), 2u)
      << text;  // And once of rank 0's fabric.
}

TEST(ToolJob, APageOfAJobGrowsWithItsRanksAndNotWithItsPairs) {
  const std::size_t few = AsText(Report(36, 4)).size();
  const std::size_t many = AsText(Report(144, 4)).size();
  EXPECT_LT(many, 6 * few);
}

TEST(ToolJob, AReasonThatIsInTheSameWordsForAllNamesNoPair) {
  const std::string text = AsText(Report(2, 1));
  EXPECT_THAT(text, HasSubstr("of 0 from 1: "));
  EXPECT_THAT(AsText(Report(2, 2)), Not(HasSubstr("why:    of")));
}

}  // namespace
}  // namespace vmm::tool
