// Rounds of an exchange over a libpmix that answers as it is told.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "fabric/job_record.h"
#include "fabric/pmix.h"
#include "tests/job/pmix_rank.h"
#include "tests/support/must.h"

namespace vmm::testing {
namespace {

namespace pmix = fabric::pmix;
using fabric::Bytes;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Under which a rank says whether its libpmix gives what was put again.
constexpr char kAgain[] = "vmmshare.again";

std::string Message(const absl::Status& status) {
  return std::string(status.message());
}

// Of one rank, whose libpmix gives what was put again.
void GoesRoundAfterRound() {
  const auto exchange = Must(Connect());
  EXPECT_EQ(exchange->job(), "job");
  EXPECT_EQ(exchange->size(), 1);
  Must(exchange->Fence(Late()));
  for (std::uint8_t round = 0; round < 6; ++round) {
    const std::string key = exchange->NextKey("word");
    Must(exchange->Put(key, Bytes(3, round), Late()));
    Must(exchange->Fence(Late()));
    EXPECT_EQ(Must(exchange->Get(0, key, Late())), Bytes(3, round));
  }
  // As many keys as two rounds need: none for each round.
  EXPECT_EQ(ThePmix().values.size(), 3u);
  EXPECT_TRUE(absl::IsNotFound(exchange->Get(0, "other", Late()).status()));
  // A server that does not give back what was put.
  const std::string key = exchange->NextKey("word");
  Must(exchange->Put(key, Bytes(3, 1), Late()));
  Must(exchange->Fence(Late()));
  for (auto& [at, value] : ThePmix().values) value.clear();
  const absl::Status status = exchange->Get(0, key, Late()).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(Message(status), HasSubstr("rank 0: the PMIx server gave pieces "
                                         "that are not of one value"));
}
const bool kGoesRoundAfterRound =
    RegisterChild("pmix-goes-round-after-round", &Rank<&GoesRoundAfterRound>);
TEST(PmixExchange, GoesRoundAfterRound) {
  EXPECT_EQ(RunRank("pmix-goes-round-after-round"), 0);
}

void RefusesWhatNoRoundCarries() {
  const auto exchange = Must(Connect());
  const std::uint8_t byte = 0;
  EXPECT_TRUE(absl::IsInvalidArgument(
      exchange->Put(std::string(401, 'k'), {&byte, 1}, Late())));
  // Its size alone is looked at.
  const absl::Status status =
      exchange->Put("word", {&byte, fabric::kMaxRecord + 1}, Late());
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(Message(status),
              AllOf(HasSubstr("PmixExchange::Put(word, 67108865 bytes)"),
                    HasSubstr("at most 400 characters, and a value at most "
                              "67108864 bytes")));
  EXPECT_TRUE(ThePmix().values.empty());
}
const bool kRefusesWhatNoRoundCarries = RegisterChild(
    "pmix-refuses-what-no-round-carries", &Rank<&RefusesWhatNoRoundCarries>);
TEST(PmixExchange, RefusesWhatNoRoundCarries) {
  EXPECT_EQ(RunRank("pmix-refuses-what-no-round-carries"), 0);
}

// Every rank must know that every other one can: each says so once.
void UsesNoKeyAgainWhereOneRankCannot() {
  ThePmix().size = 2;
  ThePmix().values[{1, kAgain}] = std::string(1, '\0');
  const auto exchange = Must(Connect());
  Must(exchange->Fence(Late()));
  EXPECT_EQ(ThePmix().values.at({0, kAgain}), "\x01");
  Must(exchange->Put("word", Bytes{'w'}, Late()));
  Must(exchange->Fence(Late()));
  EXPECT_EQ(ThePmix().values.at({0, "word"}), "w");
  EXPECT_EQ(Must(exchange->Get(0, "word", Late())), Bytes{'w'});
}
const bool kUsesNoKeyAgainWhereOneRankCannot =
    RegisterChild("pmix-uses-no-key-again-where-one-rank-cannot",
                  &Rank<&UsesNoKeyAgainWhereOneRankCannot>);
TEST(PmixExchange, UsesNoKeyAgainWhereOneRankCannot) {
  EXPECT_EQ(RunRank("pmix-uses-no-key-again-where-one-rank-cannot"), 0);
}

void UsesNoKeyAgainWhereItsOwnLibraryCannot() {
  ThePmix().version = "OpenPMIx 5.0.7";
  const auto exchange = Must(Connect());
  Must(exchange->Fence(Late()));
  EXPECT_EQ(ThePmix().values.at({0, kAgain}), std::string(1, '\0'));
  Must(exchange->Put("word", Bytes{'w'}, Late()));
  EXPECT_TRUE(ThePmix().Has(0, "word"));
}
const bool kUsesNoKeyAgainWhereItsOwnLibraryCannot =
    RegisterChild("pmix-uses-no-key-again-where-its-own-library-cannot",
                  &Rank<&UsesNoKeyAgainWhereItsOwnLibraryCannot>);
TEST(PmixExchange, UsesNoKeyAgainWhereItsOwnLibraryCannot) {
  EXPECT_EQ(RunRank("pmix-uses-no-key-again-where-its-own-library-cannot"), 0);
}

void EndsAtAFirstFenceThatCannotBeTold() {
  const auto exchange = Must(Connect());
  ThePmix().put = pmix::kErrLostConnection;
  const absl::Status status = exchange->Fence(Late());
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(Message(status), HasSubstr("PMIx_Put(vmmshare.again)"));
}
const bool kEndsAtAFirstFenceThatCannotBeTold =
    RegisterChild("pmix-ends-at-a-first-fence-that-cannot-be-told",
                  &Rank<&EndsAtAFirstFenceThatCannotBeTold>);
TEST(PmixExchange, EndsAtAFirstFenceThatCannotBeTold) {
  EXPECT_EQ(RunRank("pmix-ends-at-a-first-fence-that-cannot-be-told"), 0);
}

// There is no round yet whose values others could ask for by another key.
void EndsAtAFirstFenceThatIsLate() {
  const auto exchange = Must(Connect());
  Must(exchange->Put("word", Bytes{'w'}, Late()));
  ThePmix().fence.answer.reset();
  const absl::Status status = exchange->Fence(Deadline::In(absl::Seconds(1)));
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_EQ(ThePmix().values.at({0, "word"}), "w");
  EXPECT_EQ(ThePmix().commits, 2);
}
const bool kEndsAtAFirstFenceThatIsLate =
    RegisterChild("pmix-ends-at-a-first-fence-that-is-late",
                  &Rank<&EndsAtAFirstFenceThatIsLate>);
TEST(PmixExchange, EndsAtAFirstFenceThatIsLate) {
  EXPECT_EQ(RunRank("pmix-ends-at-a-first-fence-that-is-late"), 0);
}

void EndsWhereARankDoesNotSayWhetherItCan() {
  ThePmix().size = 2;
  const auto exchange = Must(Connect());
  const absl::Status status = exchange->Fence(Late());
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_THAT(Message(status), HasSubstr("PMIx_Get(rank 1, vmmshare.again)"));
}
const bool kEndsWhereARankDoesNotSayWhetherItCan =
    RegisterChild("pmix-ends-where-a-rank-does-not-say-whether-it-can",
                  &Rank<&EndsWhereARankDoesNotSayWhetherItCan>);
TEST(PmixExchange, EndsWhereARankDoesNotSayWhetherItCan) {
  EXPECT_EQ(RunRank("pmix-ends-where-a-rank-does-not-say-whether-it-can"), 0);
}

// What was put in the round that fails can be asked for by its own key.
void FindsWhatWasPutInARoundThatFails() {
  const auto exchange = Must(Connect());
  Must(exchange->Fence(Late()));
  Must(exchange->Put("word", Bytes{'w'}, Late()));
  EXPECT_FALSE(ThePmix().Has(0, "word"));
  ThePmix().fence.answer.reset();
  const absl::Status late = exchange->Fence(Deadline::In(absl::Seconds(1)));
  EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
  const absl::Status again = exchange->Fence(Late());
  EXPECT_TRUE(absl::IsFailedPrecondition(again)) << again;
  EXPECT_THAT(Message(again), HasSubstr("an earlier PMIx_Fence() of this job "
                                        "failed"));
  // Of a rank that was in another round: its pieces are of no use.
  for (auto& [at, value] : ThePmix().values) {
    if (at.second != "word") value.clear();
  }
  EXPECT_EQ(ThePmix().values.at({0, "word"}), "w");
  EXPECT_EQ(Must(exchange->Get(0, "word", Late())), Bytes{'w'});
  Must(exchange->Put("here", Bytes{'h'}, Late()));
  EXPECT_EQ(ThePmix().values.at({0, "here"}), "h");
}
const bool kFindsWhatWasPutInARoundThatFails =
    RegisterChild("pmix-finds-what-was-put-in-a-round-that-fails",
                  &Rank<&FindsWhatWasPutInARoundThatFails>);
TEST(PmixExchange, FindsWhatWasPutInARoundThatFails) {
  EXPECT_EQ(RunRank("pmix-finds-what-was-put-in-a-round-that-fails"), 0);
}

}  // namespace
}  // namespace vmm::testing
