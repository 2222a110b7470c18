// What is asked of one run of a sweep, by what failed in it; for sweep.cc.
#ifndef VMMSHARE_TESTS_SUPPORT_SWEEP_JUDGE_H_
#define VMMSHARE_TESTS_SUPPORT_SWEEP_JUDGE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tests/support/ledger.h"
#include "tests/support/sweep.h"

namespace vmm::testing::internal {

// A call that failed in one run.
struct FailedCall {
  std::string call;
  std::string error = {};  // Of a system call: its errno. Empty for a driver's.
  bool is_release = false;

  bool is_drivers() const { return error.empty(); }
};

// How the calls of one pass fail, and so what is asked of the operation.
struct Rules {
  std::string how = {};       // "refused once", for messages.
  bool must_succeed = false;  // The operation does not notice.
  // If the failure is told: what a refused release could not give back.
  bool may_leak = false;
  bool may_hide = false;  // The operation may ignore it.
  // Two calls fail. Each must be told that may not be hidden, each release of
  // the driver's among them.
  bool pair = false;
};

// What one run came to.
struct Run {
  std::uint64_t fired = 0;
  std::vector<FailedCall> failed = {};
  bool no_such_error = false;
  bool substituted =
      false;  // SweepPlan::substitute was called for what failed.
  std::vector<long> unlisted = {};
  std::ptrdiff_t more_handles = 0;  // Open than before.
};

// What is wrong with `status` and the reports on standard error, a line each.
std::vector<std::string> Judge(const SweepPlan& plan, const Rules& rules,
                               const Run& run, const absl::Status& status,
                               const std::vector<std::string>& reports);

// `before`, with what the driver's releases of `failed` would have given back
// as it is in `now`, where that is no more than they would have. What differs
// from `now` was left behind for another reason.
Inventory WithLosses(Inventory before, const Inventory& now,
                     const std::vector<FailedCall>& failed);

// Whether the host-memory driver may keep a descriptor of `what` open because
// of what the releases of `failed` did not give back.
bool MayHold(const std::vector<FailedCall>& failed, const std::string& what);

}  // namespace vmm::testing::internal

#endif  // VMMSHARE_TESTS_SUPPORT_SWEEP_JUDGE_H_
