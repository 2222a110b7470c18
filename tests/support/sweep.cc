#include "tests/support/sweep.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "platform/base/check.h"
#include "tests/support/open_handles.h"
#include "tests/support/stderr_tap.h"
#include "tests/support/syscall_faults.h"

namespace vmm::testing {
namespace {

constexpr std::uint64_t kForEver = FaultPoint::kForEver;
constexpr std::size_t kMaxProblems = 25;
// What a release answers: neither "out of memory", which releases do not
// answer, nor a result that means that the driver is gone.
constexpr CUresult kReleaseResult = CUDA_ERROR_ILLEGAL_ADDRESS;

// A call that failed in one run. `error` is empty for driver calls.
struct FailedCall {
  std::string call;
  std::string error;
};

// How the calls of one pass fail, and so what is asked of the operation.
struct Rules {
  std::string how = {};       // "refused once", for messages.
  bool must_succeed = false;  // The operation does not notice.
  bool may_leak = false;      // If the failure is told.
  bool may_hide = false;      // The operation may ignore it.
};

// What one run came to.
struct Run {
  std::uint64_t fired = 0;
  std::vector<FailedCall> failed = {};
  bool no_such_error = false;
  std::vector<long> unlisted = {};
  std::ptrdiff_t more_handles = 0;  // Open than before.
};

// Counts over the whole program.
class Total {
 public:
  static Total& Get() {
    static Total total;
    return total;
  }
  void Add(const SweepResult& result) {
    points_ += result.driver_points + result.system_points;
    if (const char* file = std::getenv("VMMSHARE_SWEEP_REPORT")) {
      std::FILE* report = std::fopen(file, "a");
      platform::Check(report != nullptr, "cannot write VMMSHARE_SWEEP_REPORT");
      std::fprintf(report, "%s\n", result.Summary().c_str());
      std::fclose(report);
    }
  }
  ~Total() {
    std::printf("fault points swept: %llu\n",
                static_cast<unsigned long long>(points_));
  }

 private:
  std::uint64_t points_ = 0;
};

// "accept4" is told as accept, "syscall(pidfd_open)" as pidfd_open, and the
// newer signature of a driver call by its plain name.
bool Names(const std::string& text, std::string call) {
  if (absl::StartsWith(call, "syscall(")) {
    call = call.substr(8, call.size() - 9);
  }
  if (absl::StrContains(call, "thread")) call = "thread";
  for (const char* variant : {"accept4", "openat", "ppoll", "pipe2", "dup3"}) {
    if (call == variant) {
      if (absl::StrContains(text, call)) return true;
      call = call == "openat"  ? "open"
             : call == "ppoll" ? "poll"
                               : call.substr(0, call.size() - 1);
    }
  }
  return absl::StrContains(text, call);
}

class Sweeper {
 public:
  explicit Sweeper(const SweepPlan& plan) : plan_(plan) {
    result_.name = plan.name;
    if (!plan_.inventory) {
      plan_.inventory = [faults = plan.faults] {
        return faults == nullptr ? Inventory{} : TakeInventory(faults->real());
      };
    }
  }

  SweepResult Go() {
    // Twice: the first run may make what is made once in a program.
    if (RunUnharmed("first run", false) && RunUnharmed("second run", true)) {
      if (plan_.faults != nullptr) SweepDriver();
      if (plan_.system_calls && SyscallFaultsSupported()) SweepSystem();
    }
    return std::move(result_);
  }

 private:
  void Problem(const std::string& text) {
    if (result_.problems.size() == kMaxProblems) {
      result_.problems.push_back("... and more");
    }
    if (result_.problems.size() > kMaxProblems) return;
    result_.problems.push_back(absl::StrCat(plan_.name, ": ", text));
  }

  void CompareHeld(const std::string& where, const Inventory& inventory,
                   const std::map<int, std::string>& handles) {
    for (const std::string& line : Differences(inventory, plan_.inventory())) {
      Problem(absl::StrCat(where, ": not as before: ", line));
    }
    const std::map<int, std::string> now = OpenHandles();
    for (const auto& [handle, what] : now) {
      if (!handles.contains(handle)) {
        Problem(absl::StrCat(where, ": descriptor ", handle,
                             " is left open: ", what));
      }
    }
    for (const auto& [handle, what] : handles) {
      const auto found = now.find(handle);
      if (found == now.end() || found->second != what) {
        Problem(absl::StrCat(where, ": descriptor ", handle, " was ", what,
                             " and is now ",
                             found == now.end() ? "closed" : found->second));
      }
    }
  }

  bool RunUnharmed(const std::string& where, bool compare) {
    if (plan_.setup) plan_.setup();
    const Inventory inventory = plan_.inventory();
    const std::map<int, std::string> handles = OpenHandles();
    const absl::Status status = plan_.run();
    if (!status.ok()) {
      Problem(absl::StrCat(where, ", nothing failed: answered ",
                           status.ToString()));
    }
    if (compare) CompareHeld(where + ", nothing failed", inventory, handles);
    return result_.ok();
  }

  // Whether `list` has the call, with any error or with this one.
  static bool Lists(const std::vector<std::string>& list,
                    const FailedCall& failed) {
    for (const std::string& one : list) {
      if (one == failed.call ||
          one == absl::StrCat(failed.call, ":", failed.error)) {
        return true;
      }
    }
    return false;
  }

  bool MayFailSilently(const FailedCall& failed) const {
    // Whoever was interrupted asks again.
    // EAGAIN of a thread's start means that there are too many.
    const bool asked_again =
        failed.error == "EINTR" ||
        (failed.error == "EAGAIN" && !absl::StrContains(failed.call, "thread"));
    // The thread's mode beside a capture of a stream: there is none.
    const bool is_mode = failed.call == "cuThreadExchangeStreamCaptureMode";
    return asked_again || is_mode || Lists(plan_.may_fail_silently, failed);
  }

  // Runs the operation with one fault and checks what came of it. A library of
  // the system's may keep what it makes when it is first needed; so where more
  // handles are open afterwards, it runs again: a leak comes again.
  template <typename Arm, typename Disarm>
  Run RunOnce(std::uint64_t nth, const Rules& rules, const std::string& with,
              Arm arm, Disarm disarm) {
    const std::string where =
        absl::StrCat("call ", nth, " ", rules.how, " (", with, ")");
    constexpr int kRuns = 4;
    for (int i = 1;; ++i) {
      const std::size_t known = result_.problems.size();
      Run run = Attempt(where, rules, arm, disarm);
      if (run.more_handles <= 0 || result_.problems.size() > known) return run;
      if (i == kRuns) {
        Problem(absl::StrCat(
            run.failed.empty() ? "" : run.failed.front().call + ", ", where,
            ": ", run.more_handles, " handles more are open after each of ",
            kRuns, " runs"));
        return run;
      }
    }
  }

  // Runs the operation between `arm` and `disarm`.
  template <typename Arm, typename Disarm>
  Run Attempt(std::string where, const Rules& rules, Arm arm, Disarm disarm) {
    static const bool verbose =
        std::getenv("VMMSHARE_SWEEP_VERBOSE") != nullptr;
    if (verbose) std::printf("%s: %s\n", plan_.name.c_str(), where.c_str());
    if (plan_.setup) plan_.setup();
    const Inventory inventory = plan_.inventory();
    const std::map<int, std::string> handles = OpenHandles();
    const std::size_t count = OpenHandleCount();

    BeginTap(absl::StrCat("in the sweep of ", plan_.name, ", ", where));
    arm();
    const absl::Status status = plan_.run();
    Run run = disarm();
    const std::vector<std::string> reports = EndTap();

    if (!run.failed.empty()) {
      where = absl::StrCat(run.failed.front().call, ", ", where);
    }
    Judge(where, rules, run, status, reports);
    const bool told = !status.ok() || !reports.empty();
    if (!(rules.may_leak && told)) {
      CompareHeld(where, inventory, handles);
      run.more_handles = static_cast<std::ptrdiff_t>(OpenHandleCount()) -
                         static_cast<std::ptrdiff_t>(count);
    }
    for (long number : run.unlisted) {
      Problem(absl::StrCat(where, ": syscall(", number,
                           ") is in no table of syscall_table_posix.h"));
    }
    return run;
  }

  void Judge(const std::string& where, const Rules& rules, const Run& run,
             const absl::Status& status,
             const std::vector<std::string>& reports) {
    const auto names = [&run](const std::string& text) {
      for (const FailedCall& failed : run.failed) {
        if (Names(text, failed.call)) return true;
      }
      return false;
    };
    if (run.failed.empty()) {
      if (!status.ok()) {
        Problem(absl::StrCat(where, ": no call failed, and yet it answered ",
                             status.ToString()));
      }
      return;
    }
    if (rules.must_succeed && !status.ok()) {
      Problem(absl::StrCat(where, ": must go unnoticed, but it answered ",
                           status.ToString()));
      return;
    }
    bool told_on_stderr = false;
    for (const std::string& report : reports) {
      if (names(report)) told_on_stderr = true;
    }
    if (status.ok()) {
      bool excused = rules.must_succeed || rules.may_hide || told_on_stderr;
      if (!excused) {
        excused = true;
        for (const FailedCall& failed : run.failed) {
          excused = excused && MayFailSilently(failed);
        }
      }
      if (!excused) {
        Problem(absl::StrCat(where,
                             ": the failure was swallowed: OK, and no "
                             "report on standard error"));
      }
      return;
    }
    const std::string message(status.message());
    bool told_in_words = false;
    for (const FailedCall& failed : run.failed) {
      told_in_words = told_in_words || Lists(plan_.told_in_words, failed);
    }
    if (message.empty()) {
      Problem(absl::StrCat(where,
                           ": the error has no message: ", status.ToString()));
    } else if (plan_.status_names_call && !names(message) && !told_in_words) {
      Problem(absl::StrCat(
          where, ": the error does not name the call: ", status.ToString()));
    }
    if (status.code() == absl::StatusCode::kUnknown) {
      Problem(absl::StrCat(
          where, ": the error has the code UNKNOWN: ", status.ToString()));
    }
  }

  // Runs with nth = 0, 1, 2... until `once(nth)` says that the fault was not
  // reached.
  template <typename Once>
  void Pass(const std::string& how, Once once) {
    for (std::uint64_t nth = 0; once(nth); nth += plan_.every) {
      if (result_.problems.size() > kMaxProblems) return;
      if (nth >= plan_.limit) {
        Problem(absl::StrCat("still finds calls after ", nth, " (", how, ")"));
        return;
      }
    }
  }

  void DriverPass(const DriverFault& fault, const Rules& rules) {
    const char* result_name = nullptr;
    plan_.faults->real()->cuGetErrorName(fault.result, &result_name);
    const std::string with = result_name == nullptr
                                 ? absl::StrCat(static_cast<int>(fault.result))
                                 : result_name;
    Pass(rules.how, [&](std::uint64_t nth) {
      const Run run = RunOnce(
          nth, rules, with,
          [&] {
            DriverFault now = fault;
            now.point.nth = nth;
            plan_.faults->Arm(now);
          },
          [&] {
            DriverFaults::Outcome outcome = plan_.faults->Disarm();
            Run done = {.fired = outcome.fired};
            for (std::string& call : outcome.failed) {
              done.failed.push_back({std::move(call), ""});
            }
            return done;
          });
      if (run.fired > 0) ++result_.driver_points;
      return run.fired > 0;
    });
  }

  void SweepDriver() {
    for (CUresult result : plan_.results) {
      DriverPass({.result = result}, {.how = "refused once"});
      DriverPass({.point = {.times = kForEver}, .result = result},
                 {.how = "refused for ever"});
    }
    DriverFault release = {.calls = CallKind::kRelease,
                           .result = kReleaseResult,
                           .effect = FaultEffect::kPerformedButReported};
    DriverPass(release, {.how = "done once but answered with an error"});
    release.point.times = kForEver;
    DriverPass(release, {.how = "done for ever but answered with an error"});
    release.point.times = 1;
    release.effect = FaultEffect::kNotPerformed;
    DriverPass(release, {.how = "refused once", .may_leak = true});
  }

  Run SystemRun(const SyscallFault& fault, const Rules& rules,
                const std::string& with) {
    return RunOnce(
        fault.point.nth, rules, with, [&] { ArmSyscallFault(fault); },
        [] {
          SyscallOutcome outcome = DisarmSyscallFault();
          Run done = {.fired = outcome.fired,
                      .no_such_error = outcome.no_such_error,
                      .unlisted = std::move(outcome.unlisted)};
          for (const SyscallOutcome::Failed& failed : outcome.failed) {
            done.failed.push_back({failed.call, ErrnoName(failed.error)});
          }
          return done;
        });
  }

  // Each call with each of its errors in turn.
  void SystemPassOnce(CallKind calls, Rules rules) {
    Pass(rules.how, [&](std::uint64_t nth) {
      for (std::size_t index = 0;; ++index) {
        const Run run = SystemRun(
            {.point = {.nth = nth}, .calls = calls, .error_index = index},
            rules, absl::StrCat("its error ", index));
        if (run.fired == 0) return index > 0;
        if (run.failed.empty()) return true;  // It has no more errors.
        ++result_.system_points;
      }
    });
  }

  void SystemPass(SyscallFault fault, const Rules& rules,
                  const std::string& with) {
    Pass(rules.how, [&](std::uint64_t nth) {
      fault.point.nth = nth;
      const Run run = SystemRun(fault, rules, with);
      if (run.fired > 0) ++result_.system_points;
      return run.fired > 0;
    });
  }

  void SweepSystem() {
    SystemPassOnce(CallKind::kAcquire, {.how = "failed once"});
    SystemPass({.point = {.times = kForEver}}, {.how = "failed for ever"},
               "its first error");
    // Nothing is lost by what a release answers after it is done.
    SystemPassOnce(CallKind::kRelease,
                   {.how = "done but failed once", .may_hide = true});
    SystemPass({.point = {.times = kForEver}, .calls = CallKind::kRelease},
               {.how = "done but failed for ever", .may_hide = true},
               "its first error");
    SystemPass({.point = {.times = 8}, .only_error = EINTR},
               {.how = "interrupted 8 times", .must_succeed = true}, "EINTR");
  }

  SweepPlan plan_;
  SweepResult result_;
};

}  // namespace

std::string SweepResult::Summary() const {
  return absl::StrCat("sweep ", name, ": ", driver_points + system_points,
                      " points (driver ", driver_points, ", system ",
                      system_points, "), once and for ever");
}

SweepResult Sweep(const SweepPlan& plan) {
  platform::Check(static_cast<bool>(plan.run), "SweepPlan.run must be set");
  SweepResult result = Sweeper(plan).Go();
  std::printf("%s\n", result.Summary().c_str());
  Total::Get().Add(result);
  return result;
}

void ExpectSwept(const SweepPlan& plan) {
  const SweepResult result = Sweep(plan);
  for (const std::string& problem : result.problems) ADD_FAILURE() << problem;
  EXPECT_GT(result.driver_points + result.system_points, 0u)
      << plan.name << " makes no call that can fail";
}

}  // namespace vmm::testing
