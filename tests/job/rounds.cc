// A rank that goes round after round with the others of its job, which a
// launcher has started with PMIx.
//
// usage: job_rounds ROUNDS BYTES [MISSING]
//
// Rank 0 prints which libpmix that is, and of 100 rounds or more how long early and
// late ones took. A rank MISSING does not come to the last round, and sleeps; the others give
// each other 10 seconds for it, say what they learned, and end with 1.
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "fabric/exchange.h"
#include "fabric/pmix.h"

namespace {

using vmm::Deadline;
using vmm::fabric::Bytes;
using vmm::fabric::Gathered;

// Of another size in each round.
Bytes WordOf(int rank, int round, std::size_t size) {
  const auto mix = static_cast<std::size_t>(rank) * 131 +
                   static_cast<std::size_t>(round) * 37;
  Bytes word(size - mix % (size / 2), static_cast<std::uint8_t>(mix));
  word.front() = static_cast<std::uint8_t>(round);
  return word;
}

double Median(std::vector<double> all) {
  std::nth_element(all.begin(), all.begin() + all.size() / 2, all.end());
  return all[all.size() / 2];
}

[[noreturn]] void Fail(const std::string& why) {
  std::cerr << "job_rounds: error: " << why << '\n';
  std::exit(1);
}

[[noreturn]] void LoseOne(vmm::fabric::Exchange& exchange, int missing) {
  if (exchange.rank() == missing) {
    ::sleep(600);  // Until the job is ended.
    std::exit(1);
  }
  const Gathered all =
      Gather(exchange, "word", Bytes(1), Deadline::In(absl::Seconds(10)));
  if (all.status.ok()) Fail("the last round was complete");
  std::cout << absl::StrFormat("rank %d: %s\n", exchange.rank(),
                               all.status.message())
            << std::flush;
  // A launcher ends the job when a rank ends: not before all have said it. One
  // rank alone: where two failed at once mpirun was seen to hang.
  const bool ends_the_job = exchange.rank() == (missing == 0 ? 1 : 0);
  ::sleep(ends_the_job ? 3 : 600);
  std::exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) Fail("usage: job_rounds ROUNDS BYTES [MISSING]");
  const int rounds = std::atoi(argv[1]);
  const auto size = static_cast<std::size_t>(std::atoi(argv[2]));
  auto exchange =
      vmm::fabric::PmixExchange::Connect({}, Deadline::In(absl::Minutes(1)));
  if (!exchange.ok()) Fail(exchange.status().ToString());
  const int rank = (*exchange)->rank();
  std::vector<double> took;
  for (int round = 0; round < rounds; ++round) {
    const absl::Time began = absl::Now();
    const Gathered all = Gather(**exchange, "word", WordOf(rank, round, size),
                                Deadline::In(absl::Minutes(1)));
    took.push_back(absl::ToDoubleMilliseconds(absl::Now() - began));
    if (!all.status.ok()) Fail(all.status.ToString());
    for (int peer = 0; peer < (*exchange)->size(); ++peer) {
      if (*all.records[peer] != WordOf(peer, round, size)) {
        Fail(absl::StrFormat("rank %d has a wrong word of rank %d in round %d",
                             rank, peer, round));
      }
    }
  }
  if (rank == 0) std::cout << (*exchange)->Describe() << std::endl;
  if (rank == 0 && rounds >= 100) {
    std::cout << absl::StrFormat(
                     "rounds 10 to 49 took %.3f ms, the last 40 %.3f ms\n",
                     Median({took.begin() + 10, took.begin() + 50}),
                     Median({took.end() - 40, took.end()}))
              << std::flush;
  }
  if (argc > 3) LoseOne(**exchange, std::atoi(argv[3]));
  return 0;
}
