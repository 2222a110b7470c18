// The fail-Nth sweep: an operation with every one of its calls failed in turn.
//
//   DriverFaults faults;
//   const platform::Driver driver = FaultyDriver(TestDriver(), &faults);
//   ExpectSwept({.name = "allocate",
//                .run = [&] { return Allocation::Create(...).status(); },
//                .faults = &faults});
//
// The operation is run with call 0 failed, with call 1 failed, and so on until
// the fault is no longer reached. After each run the driver holds what it held
// before, the same descriptors are open, and the failure has been told: by the
// status, which names the call, or, for a release that no caller can be told
// of, by one line on standard error.
//
// What fails, one at a time and one pass each:
//   driver    each acquiring call: refused once; refused for ever from there.
//             Each releasing call: done but answered with an error, once and
//             for ever; refused once, after which the leak must be reported,
//             and is of what that call would have given back.
//             (Refused for ever it could not be anything but a leak.)
//   system    each call: with each error that its manual documents, once; with
//             the first permanent one for ever from there; EINTR eight times
//             in a row, which must not be noticed. A close does close.
//   pairs     where the plan asks for them: each call and the next one, which
//             is the first of the way back as a rule. The next one of the
//             same kind, and of the other. What a refused release would have
//             given back may be left then, and nothing else; each failed
//             release is told; a run ends within 30 s.
#ifndef VMMSHARE_TESTS_SUPPORT_SWEEP_H_
#define VMMSHARE_TESTS_SUPPORT_SWEEP_H_

#include <cuda.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tests/support/driver_faults.h"
#include "tests/support/ledger.h"

namespace vmm::testing {

struct SweepPlan {
  std::string name = {};

  // Before each run, with no fault armed: what the operation needs. Optional.
  // What it makes may stay until the next setup, which replaces it.
  std::function<void()> setup = {};
  // The operation. Everything it makes is released when it returns. It must
  // succeed when nothing fails.
  std::function<absl::Status()> run = {};

  // The driver calls to fail. Null: none.
  DriverFaults* faults = nullptr;
  // Whether system calls are failed, where that is supported.
  bool system_calls = true;

  // What acquiring driver calls answer, one pass each.
  std::vector<CUresult> results = {CUDA_ERROR_OUT_OF_MEMORY,
                                   CUDA_ERROR_INVALID_VALUE};
  // Calls whose failure may go untold, because the operation can do without
  // them: "cuMemGetInfo", "getsockopt", or with one error alone:
  // "getsockopt:ENOPROTOOPT". A reason belongs in a comment beside each.
  std::vector<std::string> may_fail_silently = {};
  // A driver call that is made once more where one of `instead_of` failed, whose
  // failure may go untold then.
  struct Substitute {
    std::string call = {};
    std::vector<std::string> instead_of = {};
  };
  Substitute substitute = {};
  // Calls whose failure a status tells in words of its own, written in the
  // same way: "sendmsg:EPIPE", which says that the peer hung up.
  std::vector<std::string> told_in_words = {};
  // Whether an error status names the failed call. False where another thread
  // or process meets the failure, and the status says what came of it.
  bool status_names_call = true;
  // What must be equal before and after each run, beside open descriptors.
  // Default: TakeInventory(faults->real()); nothing without `faults`.
  std::function<Inventory()> inventory = {};
  // A pass that is still finding calls after so many has run away.
  std::uint64_t limit = 5000;
  // One call in so many is failed. At least 1.
  std::uint64_t every = 1;
  // One call in so many is failed together with the next one. 0: none is.
  std::uint64_t pairs = 0;
};

struct SweepResult {
  std::string name;
  std::uint64_t driver_points = 0;  // Runs with a driver call failed.
  std::uint64_t system_points = 0;  // Runs with a system call failed.
  std::uint64_t pair_points = 0;    // Runs with two calls failed.
  // One line each: which call failed, how, and what was wrong afterwards.
  std::vector<std::string> problems;

  bool ok() const { return problems.empty(); }
  // "sweep allocate: 60 points (driver 40, system 20), once and for ever", and
  // ", and 30 pairs" where there are any.
  std::string Summary() const;
};

// Runs the sweep and prints its Summary(). Its points are added to the line
// "fault points swept: N" printed when the program ends, and appended to the
// file $VMMSHARE_SWEEP_REPORT, if set. With $VMMSHARE_SWEEP_VERBOSE each run
// is announced. From one thread at a time.
SweepResult Sweep(const SweepPlan& plan);

// Sweep(), with each problem a failure of the current test, which also fails
// when there was nothing to sweep.
void ExpectSwept(const SweepPlan& plan);

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_SUPPORT_SWEEP_H_
