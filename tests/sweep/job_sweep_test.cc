// Collective calls of a job with every driver call of one rank failed in turn.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fabric/job_matrix.h"
#include "tests/job/local_job.h"
#include "tests/support/must.h"
#include "tests/support/private_directory.h"
#include "tests/support/syscall_faults.h"
#include "tests/sweep/vmm_sweep.h"
#include "vmm/job/handshake.h"
#include "vmm/job/symmetric.h"

namespace vmm::testing {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

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

// The first refusal, if there is one, also where another kind of handle worked.
// Ranks tell each other of calls that fail by their cards and rows: both know
// the same.
absl::Status FirstRefusal(const job::HandshakeResult& met) {
  if (!met.status.ok()) return met.status;
  for (const int importer : {0, 1}) {
    const absl::StatusOr<std::vector<fabric::JobTry>> tries =
        met.matrix.details().Tries(importer, 1 - importer);
    if (!tries.ok()) return tries.status();
    for (const fabric::JobTry& one : *tries) {
      if (!one.ok()) return one.refusal.ToStatus(absl::StrCat(importer));
    }
  }
  return absl::OkStatus();
}

absl::Status MeetOnTwoRanks(const platform::Driver& of_rank_0) {
  LocalJob job(2);
  absl::Status told[2];
  job.RunAll([&](int rank, fabric::Exchange& exchange) {
    told[rank] = FirstRefusal(job::Handshake(
        Device::ByOrdinal(rank == 0 ? of_rank_0 : TestDriver(), 0), exchange,
        {}, Late()));
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
  // Whether fabric handles work here is found out as well, and the ranks can do
  // without. Where they seem to they are tried, with a copy, and a ticket is made.
  plan.may_fail_silently = {"cuDeviceGetAttribute", "cuMemCreate",
                            "cuMemGetAllocationGranularity"};
  if (Made({.size = 1, .sharing = job::JobSharing()})
          .kinds()
          .Has(HandleKind::kFabric)) {
    for (const char* call :
         {"cuMemExportToShareableHandle", "cuMemImportFromShareableHandle",
          "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess",
          "cuDevicePrimaryCtxGetState", "cuDevicePrimaryCtxRetain",
          "cuCtxPushCurrent", "cuStreamCreate", "cuMemsetD32Async",
          "cuMemcpyDtoHAsync", "cuStreamQuery", "cuStreamSynchronize"}) {
      plan.may_fail_silently.emplace_back(call);
    }
  }
  ExpectSwept(plan);
}

// Its part fails, not the job: all others learn from its card why.
TEST_F(JobSweep, ARankWhoseSystemCallFailsTellsItByItsCard) {
  if (!SyscallFaultsSupported()) GTEST_SKIP() << "no system call fails here";
  const absl::StatusOr<Device> device = Device::ByOrdinal(TestDriver(), 0);
  const PrivateDirectory root;  // As short a look as there is.
  std::set<std::string> troubles;
  for (std::uint64_t nth = 0;; ++nth) {
    LocalJob job(1);
    fabric::CallbackExchange exchange(job.Callbacks(0));
    ArmSyscallFault({.point = {.nth = nth, .this_thread_only = true}});
    const job::HandshakeResult met = job::Handshake(
        device, exchange, {.job = {.root = root.path()}}, Late());
    const SyscallOutcome outcome = DisarmSyscallFault();
    if (outcome.fired == 0) break;
    ASSERT_EQ(outcome.failed.size(), 1u);
    const std::string& call = outcome.failed.front().call;
    ASSERT_TRUE(met.status.ok()) << call << ": " << met.status;
    const fabric::Refusal& trouble = met.matrix.details().card(0)->trouble;
    if (trouble.empty()) continue;
    troubles.insert(trouble.finding.id);
    EXPECT_THAT(trouble.finding.text, HasSubstr(call));
  }
  EXPECT_THAT(troubles, Contains("no-context"));
}

}  // namespace
}  // namespace vmm::testing
