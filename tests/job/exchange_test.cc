// One round of an exchange: complete, late, and with a rank missing.
#include "fabric/exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "tests/job/local_job.h"
#include "tests/support/must.h"

namespace vmm::testing {
namespace {

using fabric::Bytes;
using fabric::Gathered;
using ::testing::HasSubstr;
using ::testing::Not;

Bytes Of(int rank) { return Bytes(100, static_cast<std::uint8_t>(rank)); }

TEST(Gather, GivesEveryRankWhatAllHavePut) {
  LocalJob job(4);
  job.RunAll([](int rank, fabric::Exchange& exchange) {
    for (int round = 0; round < 3; ++round) {
      const Gathered all = Gather(exchange, "word", Of(rank + round),
                                  absl::Now() + absl::Seconds(20));
      EXPECT_TRUE(all.status.ok()) << all.status;
      for (int peer = 0; peer < 4; ++peer) {
        ASSERT_TRUE(all.records[peer].ok()) << all.records[peer].status();
        EXPECT_EQ(*all.records[peer], Of(peer + round));
      }
    }
  });
}

TEST(Gather, NamesTheRanksThatDidNotCome) {
  LocalJob job(4);
  job.Run({0, 2}, [](int rank, fabric::Exchange& exchange) {
    const absl::Time deadline = absl::Now() + absl::Seconds(1);
    const Gathered all = Gather(exchange, "word", Of(rank), deadline);
    EXPECT_LE(absl::Now(), deadline + absl::Seconds(1));
    EXPECT_TRUE(absl::IsDeadlineExceeded(all.status)) << all.status;
    EXPECT_THAT(std::string(all.status.message()),
                HasSubstr("no word came from ranks 1, 3"));
    EXPECT_TRUE(all.records[2].ok());
    EXPECT_FALSE(all.records[3].ok());
  });
}

TEST(Gather, KeepsTimeForFindingOutWhoIsMissing) {
  LocalJob job(2);
  const absl::Time deadline = absl::Now() + absl::Seconds(1);
  absl::Time fence_by;
  fabric::ExchangeCallbacks callbacks = job.Callbacks(0);
  callbacks.fence = [&fence_by](absl::Time by) {
    fence_by = by;
    return absl::UnavailableError("the medium is down");
  };
  fabric::CallbackExchange exchange(callbacks);
  const Gathered all = Gather(exchange, "word", Of(0), deadline);
  EXPECT_LE(fence_by, deadline - absl::Milliseconds(50));
  EXPECT_TRUE(absl::IsUnavailable(all.status)) << all.status;
  EXPECT_THAT(std::string(all.status.message()),
              HasSubstr("no word came from rank 1: the program's fence(): the "
                        "medium is down"));
}

TEST(Gather, SaysWhenThisRankCannotPut) {
  LocalJob job(2);
  fabric::ExchangeCallbacks callbacks = job.Callbacks(0);
  callbacks.put = [](const std::string&, absl::Span<const std::uint8_t>,
                     absl::Time) { return absl::InternalError("disk full"); };
  fabric::CallbackExchange exchange(callbacks);
  const Gathered all =
      Gather(exchange, "word", Of(0), absl::Now() + absl::Seconds(1));
  EXPECT_THAT(std::string(all.status.message()),
              HasSubstr("rank 0 cannot tell the others"));
  EXPECT_EQ(all.records.size(), 2u);
}

TEST(Gather, NamesTheRankThatDiedBetweenItsWordAndTheEndOfTheRound) {
  LocalJob job(3);
  job.RunAll([](int rank, fabric::Exchange& exchange) {
    if (rank == 2) {
      Must(exchange.Put(exchange.NextKey("word"), Of(rank), Late()));
      return;  // And is never heard of again.
    }
    const Gathered all =
        Gather(exchange, "word", Of(rank), absl::Now() + absl::Seconds(5));
    EXPECT_TRUE(absl::IsDeadlineExceeded(all.status)) << all.status;
    EXPECT_THAT(std::string(all.status.message()),
                HasSubstr("every rank has sent its word, but the round did not "
                          "end, and there was no sign of life from rank 2:"));
  });
}

TEST(Exchange, NeverGivesAKeyTwice) {
  LocalJob job(1);
  fabric::CallbackExchange exchange(job.Callbacks(0));
  EXPECT_EQ(exchange.NextKey("card"), "vmmshare.card.0");
  EXPECT_THAT(exchange.NextKey("card"), Not("vmmshare.card.0"));
}

// Rounds of the two interleave, as those of two libraries in one program do.
TEST(Exchange, TwoOverOneStoreDoNotReadEachOthersValues) {
  LocalJob job(2);
  job.RunAll([&job](int rank, fabric::Exchange& first) {
    fabric::ExchangeCallbacks callbacks = job.Callbacks(rank);
    callbacks.scope = "second";
    fabric::CallbackExchange second(callbacks);
    Must(first.Put(first.NextKey("word"), Of(rank), Late()));
    const Gathered others = Gather(second, "word", Of(10 + rank), Late());
    ASSERT_TRUE(others.status.ok()) << others.status;
    EXPECT_EQ(*others.records[1 - rank], Of(10 + 1 - rank));
    EXPECT_EQ(Must(first.Get(1 - rank, "vmmshare.word.0", Late())),
              Of(1 - rank));
  });
}

}  // namespace
}  // namespace vmm::testing
