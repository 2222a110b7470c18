// Misuse of what ranks of a job have: a broken REQUIRES ends the program.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "fabric/exchange.h"
#include "fabric/job_matrix.h"
#include "fabric/job_record.h"
#include "fabric/pmix_rounds.h"
#include "vmm/job/symmetric.h"

namespace vmm::testing {
namespace {

fabric::ExchangeCallbacks Callbacks() {
  fabric::ExchangeCallbacks callbacks;
  callbacks.put = [](const std::string&, absl::Span<const std::uint8_t>,
                     absl::Time) { return absl::OkStatus(); };
  callbacks.fence = [](absl::Time) { return absl::OkStatus(); };
  callbacks.get = [](int, const std::string&, absl::Time) {
    return absl::StatusOr<fabric::Bytes>(fabric::Bytes());
  };
  return callbacks;
}

TEST(JobDeathTest, AnExchangeNeedsAllOfItsFunctions) {
  for (int without = 0; without < 3; ++without) {
    fabric::ExchangeCallbacks callbacks = Callbacks();
    if (without == 0) callbacks.put = nullptr;
    if (without == 1) callbacks.fence = nullptr;
    if (without == 2) callbacks.get = nullptr;
    EXPECT_DEATH(fabric::CallbackExchange(std::move(callbacks)),
                 "a CallbackExchange needs put, fence and get");
  }
}

TEST(JobDeathTest, ARankIsBelowTheSizeOfItsJob) {
  for (const int rank : {-1, 2}) {
    fabric::ExchangeCallbacks callbacks = Callbacks();
    callbacks.size = 2;
    callbacks.rank = rank;
    EXPECT_DEATH(fabric::CallbackExchange(std::move(callbacks)),
                 "must be below its size");
  }
}

TEST(JobDeathTest, AHeapHasBytesAndNoMoreThanItCanAddress) {
  for (const std::uint64_t size :
       {std::uint64_t{0}, job::SymmetricHeap::kMaxSize + 1,
        std::uint64_t{1} << 40}) {
    EXPECT_DEATH(job::SymmetricHeap{size}, "has 1 byte to just below 1 TiB");
  }
}

TEST(JobDeathTest, AMatrixHasTheOwnersThatItWasGiven) {
  EXPECT_DEATH(static_cast<void>(fabric::JobRow(0).With(0)),
               "a row has no such owner");
  EXPECT_DEATH(fabric::JobMatrix({fabric::JobCard()}, {}),
               "a card and a row of every rank");
}

TEST(JobDeathTest, AValueIsNoLongerThanItsLengthCanSay) {
  fabric::Bytes bytes;
  platform::WireWriter out(bytes);
  EXPECT_DEATH(fabric::PutBlob(out, std::string(0x10000, 'x')),
               "at most 65,535 bytes");
  EXPECT_DEATH(fabric::PmixRounds().Put(std::string(401, 'k'), {}),
               "a short name and few bytes");
  const std::uint8_t byte = 0;
  EXPECT_DEATH(fabric::PmixRounds().Put(
                   "k", absl::MakeConstSpan(&byte, fabric::kMaxRecord + 1)),
               "a short name and few bytes");
}

}  // namespace
}  // namespace vmm::testing
