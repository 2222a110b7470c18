// Collective calls of a job with every driver call of one rank failed in turn.
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/job/local_job.h"
#include "tests/support/must.h"
#include "tests/sweep/vmm_sweep.h"
#include "vmm/job/handshake.h"
#include "vmm/job/symmetric.h"

namespace vmm::testing {
namespace {

// What rank 0 was told; INTERNAL when rank 1 was told otherwise.
absl::Status CreateOnTwoRanks(const platform::Driver& of_rank_0,
                              bool one_range) {
  LocalJob job(2);
  absl::Status told[2];
  job.RunAll([&](int rank, fabric::Exchange& exchange) {
    job::SymmetricOptions options;
    options.size = 3 * kMiB;
    options.sharing = SharePolicy::Native();
    options.one_range = one_range;
    told[rank] = job::SymmetricMemory::Create(
                     Device::ByOrdinal(rank == 0 ? of_rank_0 : TestDriver(), 0),
                     exchange, options, Late())
                     .status();
  });
  if (told[0] == told[1]) return told[0];
  return absl::InternalError(absl::StrCat("rank 0: ", told[0].ToString(),
                                          ", rank 1: ", told[1].ToString()));
}

// Why the ranks do not all reach each other. A rank whose calls fail tells the
// others so by its card or by its row: both ranks know the same.
absl::Status MeetOnTwoRanks(const platform::Driver& of_rank_0) {
  LocalJob job(2);
  absl::Status told[2];
  job.RunAll([&](int rank, fabric::Exchange& exchange) {
    const job::HandshakeResult met = job::Handshake(
        Device::ByOrdinal(rank == 0 ? of_rank_0 : TestDriver(), 0), exchange,
        {}, Late());
    told[rank] = met.status.ok() ? met.matrix.AllReach() : met.status;
  });
  if (told[0] == told[1]) return told[0];
  return absl::InternalError(absl::StrCat("rank 0: ", told[0].ToString(),
                                          ", rank 1: ", told[1].ToString()));
}

using JobSweep = VmmSweep;

SweepPlan OfTheDriverAlone(SweepPlan plan) {
  plan.system_calls = false;  // Which rank would meet them is chance.
  return plan;
}

TEST_F(JobSweep, SymmetricMemoryInOneRange) {
  ExpectSwept(
      WithPairs(OfTheDriverAlone(Plan("symmetric memory in one range", [this] {
        return CreateOnTwoRanks(driver_, true);
      }))));
}

TEST_F(JobSweep, SymmetricMemoryAtItsOwnAddresses) {
  ExpectSwept(
      OfTheDriverAlone(Plan("symmetric memory at addresses of its own", [this] {
        return CreateOnTwoRanks(driver_, false);
      })));
}

TEST_F(JobSweep, Handshake) {
  SweepPlan plan = OfTheDriverAlone(
      Plan("handshake", [this] { return MeetOnTwoRanks(driver_); }));
  // Whether fabric handles work here is asked for as well; where it cannot be
  // found out, the ranks reach each other by the system's own.
  plan.may_fail_silently = {"cuDeviceGetAttribute", "cuMemCreate",
                            "cuMemGetAllocationGranularity"};
  ExpectSwept(plan);
}

}  // namespace
}  // namespace vmm::testing
