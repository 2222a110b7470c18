// One round of an exchange: complete, late, and with a rank missing.
#include "fabric/exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
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
    const absl::Time deadline = absl::Now() + absl::Seconds(5);
    const Gathered all = Gather(exchange, "word", Of(rank), deadline);
    EXPECT_LE(absl::Now(), deadline + kRankGrace);
    EXPECT_TRUE(absl::IsDeadlineExceeded(all.status)) << all.status;
    EXPECT_THAT(std::string(all.status.message()),
                HasSubstr("no word came from ranks 1, 3"));
    EXPECT_TRUE(all.records[2].ok());
    EXPECT_FALSE(all.records[3].ok());
  });
}

TEST(Gather, KeepsTimeForFindingOutWhoIsMissing) {
  LocalJob job(2);
  const absl::Time deadline = absl::Now() + absl::Seconds(10);
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

// In half a second, which a busy machine may let pass for the others too: in
// one job of three it does not.
TEST(Gather, NamesTheRankThatDiedBetweenItsWordAndTheEndOfTheRound) {
  std::mutex mutex;
  std::string said;
  for (int i = 0; i < 3; ++i) {
    LocalJob job(3);
    int right = 0;
    const absl::Time deadline = absl::Now() + absl::Seconds(5);
    job.RunAll([&](int rank, fabric::Exchange& exchange) {
      if (rank == 2) {
        Must(exchange.Put(exchange.NextKey("word"), Of(rank), Late()));
        return;  // And is never heard of again.
      }
      const Gathered all = Gather(exchange, "word", Of(rank), deadline);
      EXPECT_TRUE(absl::IsDeadlineExceeded(all.status)) << all.status;
      const std::lock_guard<std::mutex> lock(mutex);
      absl::StrAppend(&said, all.status.message(), "\n");
      if (absl::StrContains(
              all.status.message(),
              "every rank has sent its word, but the round did not end, and "
              "there was no sign of life from rank 2:")) {
        ++right;
      }
    });
    if (right == 2) return;
  }
  FAIL() << said;
}

// A medium whose rounds fail; what ranks put can be had all the same.
fabric::ExchangeCallbacks WithoutFences(int ranks) {
  fabric::ExchangeCallbacks callbacks;
  callbacks.job = "broken";
  callbacks.size = ranks;
  callbacks.put = [](const std::string&, absl::Span<const std::uint8_t>,
                     absl::Time) { return absl::OkStatus(); };
  callbacks.fence = [](absl::Time) {
    return absl::UnavailableError("the medium is down");
  };
  callbacks.get = [](int rank, const std::string&, absl::Time) {
    return absl::StatusOr<Bytes>(Of(rank));
  };
  return callbacks;
}

TEST(Gather, OfManyMissingRanksNamesTheFirstAndCountsTheOthers) {
  fabric::ExchangeCallbacks callbacks = WithoutFences(20);
  callbacks.get = [](int rank, const std::string&,
                     absl::Time) -> absl::StatusOr<Bytes> {
    if (rank == 0) return Of(0);
    return absl::NotFoundError("nothing put");
  };
  fabric::CallbackExchange exchange(callbacks);
  const Gathered all = Gather(exchange, "word", Of(0), Late());
  EXPECT_TRUE(absl::IsUnavailable(all.status)) << all.status;
  EXPECT_THAT(std::string(all.status.message()),
              HasSubstr("no word came from ranks 1, 2, 3, 4, 5, 6, 7, 8, 9, "
                        "10, 11, 12, 13, 14, 15, 16 and 3 more: "));
}

// As those of libpmix 4.2.3 to 5.0.11 may: only the rank that is missing is named.
TEST(Gather, AFenceThatSaysItSucceededWhenItDidNotIsFoundOut) {
  fabric::ExchangeCallbacks callbacks = WithoutFences(8);
  callbacks.fence = [](absl::Time) { return absl::OkStatus(); };
  callbacks.get = [](int rank, const std::string&,
                     absl::Time by) -> absl::StatusOr<Bytes> {
    if (absl::Now() < by && rank != 1) return Of(rank);
    absl::SleepFor(by - absl::Now());  // As a server that waits for it.
    return absl::DeadlineExceededError("nothing came");
  };
  fabric::CallbackExchange exchange(callbacks);
  const Gathered all =
      Gather(exchange, "word", Of(0), Deadline::In(absl::Seconds(6)));
  EXPECT_TRUE(absl::IsDeadlineExceeded(all.status)) << all.status;
  EXPECT_THAT(std::string(all.status.message()),
              HasSubstr("no word came from rank 1: "));
  EXPECT_EQ(Must(all.records[7]), Of(7));
}

// Whose fault it is cannot be found out, and nobody is blamed.
TEST(Gather, BlamesNobodyWhereAllAreHeardOrNoneCanBeAsked) {
  for (const bool can_put_again : {true, false}) {
    fabric::ExchangeCallbacks callbacks = WithoutFences(3);
    callbacks.put = [can_put_again, puts = 0](
                        const std::string&, absl::Span<const std::uint8_t>,
                        absl::Time) mutable -> absl::Status {
      if (++puts == 1 || can_put_again) return absl::OkStatus();
      return absl::ResourceExhaustedError("disk full");
    };
    fabric::CallbackExchange exchange(callbacks);
    const Gathered all = Gather(exchange, "word", Of(0), Late());
    EXPECT_TRUE(absl::IsUnavailable(all.status)) << all.status;
    EXPECT_THAT(std::string(all.status.message()),
                HasSubstr("job broken, rank 0 of 3: every rank has sent its "
                          "word, but the round did not end: the program's "
                          "fence(): the medium is down"));
    EXPECT_EQ(Must(all.records[2]), Of(2));
  }
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
