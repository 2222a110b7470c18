#include "tests/support/sweep.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "platform/base/check.h"
#include "tests/support/lifeline_patience.h"
#include "tests/support/open_handles.h"
#include "tests/support/stderr_tap.h"
#include "tests/support/sweep_judge.h"
#include "tests/support/syscall_faults.h"

namespace vmm::testing {
namespace {

constexpr std::uint64_t kForEver = FaultPoint::kForEver;
constexpr std::size_t kMaxProblems = 25;
// Of a run in which two calls fail. Operations have deadlines of 2 s.
constexpr absl::Duration kLongest = absl::Seconds(30);
// What a release answers: neither "out of memory", which releases do not
// answer, nor a result that means that the driver is gone.
constexpr CUresult kReleaseResult = CUDA_ERROR_ILLEGAL_ADDRESS;

// Counts over the whole program.
class Total {
 public:
  static Total& Get() {
    static Total total;
    return total;
  }
  void Add(const SweepResult& result) {
    points_ += result.driver_points + result.system_points + result.pair_points;
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

using internal::FailedCall;
using internal::Rules;
using internal::Run;

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
      if (plan_.pairs > 0) SweepPairs();
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

  // Descriptors that are open since are what the driver holds for what a
  // refused release left with it: without one there are none.
  void CompareWhatIsLeft(const std::string& where, const Rules& rules,
                         const Run& run, const Inventory& inventory,
                         const std::map<int, std::string>& handles) {
    std::vector<FailedCall> refused;
    if (rules.may_leak) refused = run.failed;
    const Inventory now = plan_.inventory();
    std::map<int, std::string> kept = handles;
    for (const auto& [handle, what] : OpenHandles()) {
      if (internal::MayHold(refused, what)) kept[handle] = what;
    }
    CompareHeld(where, internal::WithLosses(inventory, now, refused), kept);
  }

  bool RunUnharmed(const std::string& where, bool compare) {
    if (plan_.setup) plan_.setup();
    const Inventory inventory = plan_.inventory();
    const std::map<int, std::string> handles = OpenHandles();
    const std::uint64_t substitutes = Substitutes();
    const absl::Status status = plan_.run();
    substitutes_unharmed_ = Substitutes() - substitutes;
    if (!status.ok()) {
      Problem(absl::StrCat(where, ", nothing failed: answered ",
                           status.ToString()));
    }
    if (compare) CompareHeld(where + ", nothing failed", inventory, handles);
    return result_.ok();
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
    const std::size_t contexts =
        plan_.faults == nullptr ? 0 : CountContexts(plan_.faults->real());

    BeginTap(absl::StrCat("in the sweep of ", plan_.name, ", ", where));
    const std::uint64_t substitutes = Substitutes();
    arm();
    const absl::Time begun = absl::Now();
    const absl::Status status = plan_.run();
    const absl::Duration took = absl::Now() - begun;
    Run run = disarm();
    run.substituted = Substitutes() - substitutes > substitutes_unharmed_;
    const std::vector<std::string> reports = EndTap();

    if (!run.failed.empty()) {
      where = absl::StrCat(run.failed.front().call, ", ", where);
    }
    for (const std::string& line :
         internal::Judge(plan_, rules, run, status, reports)) {
      Problem(absl::StrCat(where, ": ", line));
    }
    if (rules.pair && took > kLongest) {
      Problem(absl::StrCat(where, ": took ", absl::FormatDuration(took)));
    }
    const bool told = !status.ok() || !reports.empty();
    if (rules.pair || (rules.may_leak && told)) {
      CompareWhatIsLeft(where, rules, run, inventory, handles);
    } else {
      CompareHeld(where, inventory, handles);
      run.more_handles = static_cast<std::ptrdiff_t>(OpenHandleCount()) -
                         static_cast<std::ptrdiff_t>(count);
    }
    // What a refused pop left; some hundreds more, and none can be pushed.
    if (plan_.faults != nullptr) DropContexts(plan_.faults->real(), contexts);
    for (long number : run.unlisted) {
      Problem(absl::StrCat(where, ": syscall(", number,
                           ") is in no table of syscall_table_posix.h"));
    }
    return run;
  }

  // Runs with nth = 0, `every`, 2 * `every`... until `once(nth)` says that the
  // fault was not reached.
  template <typename Once>
  void Pass(const std::string& how, std::uint64_t every, Once once) {
    for (std::uint64_t nth = 0; once(nth); nth += every) {
      if (result_.problems.size() > kMaxProblems) return;
      if (nth >= plan_.limit) {
        Problem(absl::StrCat("still finds calls after ", nth, " (", how, ")"));
        return;
      }
    }
  }

  std::uint64_t Substitutes() const {
    if (plan_.faults == nullptr || plan_.substitute.call.empty()) return 0;
    return plan_.faults->CallsByEntry()[plan_.substitute.call];
  }

  // Stops failing calls, and adds to `run` which failed.
  void DisarmDriver(Run& run) {
    DriverFaults::Outcome outcome = plan_.faults->Disarm();
    run.fired += outcome.fired;
    for (std::string& call : outcome.failed) {
      const bool is_release = KindOfDriverCall(call) == CallKind::kRelease;
      run.failed.push_back({std::move(call), "", is_release});
    }
  }
  static void DisarmSystem(Run& run) {
    SyscallOutcome outcome = DisarmSyscallFault();
    run.fired += outcome.fired;
    run.no_such_error = outcome.no_such_error;
    run.unlisted = std::move(outcome.unlisted);
    for (const SyscallOutcome::Failed& failed : outcome.failed) {
      run.failed.push_back({failed.call, ErrnoName(failed.error),
                            failed.kind == CallKind::kRelease});
    }
  }

  void DriverPass(const DriverFault& fault, const Rules& rules) {
    const char* result_name = nullptr;
    plan_.faults->real()->cuGetErrorName(fault.result, &result_name);
    const std::string with = result_name == nullptr
                                 ? absl::StrCat(static_cast<int>(fault.result))
                                 : result_name;
    Pass(rules.how, plan_.every, [&](std::uint64_t nth) {
      const Run run = RunOnce(
          nth, rules, with,
          [&] {
            DriverFault now = fault;
            now.point.nth = nth;
            plan_.faults->Arm(now);
          },
          [&] {
            Run done;
            DisarmDriver(done);
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
          Run done;
          DisarmSystem(done);
          return done;
        });
  }

  // Each call with each of its errors in turn.
  void SystemPassOnce(CallKind calls, Rules rules) {
    Pass(rules.how, plan_.every, [&](std::uint64_t nth) {
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
    Pass(rules.how, plan_.every, [&](std::uint64_t nth) {
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

  // Runs with the pairs that `arm` makes of each call and the one after it.
  template <typename Arm>
  void PairPass(const std::string& how, bool may_leak, Arm arm) {
    const Rules rules = {.how = how, .may_leak = may_leak, .pair = true};
    Pass(how, plan_.pairs, [&](std::uint64_t nth) {
      const Run run = RunOnce(
          nth, rules, "a pair", [&] { arm(nth); },
          [&] {
            Run done;
            if (plan_.faults != nullptr) DisarmDriver(done);
            DisarmSystem(done);
            return done;
          });
      if (run.failed.size() > 1) ++result_.pair_points;
      return run.fired > 0;
    });
  }

  // Acquiring calls are refused. A release of the driver's is refused too, or
  // done and said to have failed.
  DriverFault Either(std::uint64_t nth, std::uint64_t times,
                     FaultEffect effect) const {
    return {.point = {.nth = nth, .times = times},
            .calls = CallKind::kAny,
            .result = plan_.results.front(),
            .release_result = kReleaseResult,
            .effect = effect};
  }

  void SweepPairs() {
    using enum FaultEffect;
    const auto system = [](std::uint64_t nth, std::uint64_t times) {
      return SyscallFault{.point = {.nth = nth, .times = times},
                          .calls = CallKind::kAny};
    };
    const bool driver = plan_.faults != nullptr;
    if (driver) {
      PairPass("and the next one refused", true, [&](std::uint64_t nth) {
        plan_.faults->Arm(Either(nth, 2, kNotPerformed));
      });
      PairPass("and the next one failed, releases done", false,
               [&](std::uint64_t nth) {
                 plan_.faults->Arm(Either(nth, 2, kPerformedButReported));
               });
    }
    if (!plan_.system_calls || !SyscallFaultsSupported()) return;
    PairPass("and the next system call failed", false,
             [&](std::uint64_t nth) { ArmSyscallFault(system(nth, 2)); });
    if (!driver) return;
    PairPass("refused, and the next system call failed", true,
             [&](std::uint64_t nth) {
               DriverFault fault = Either(nth, 1, kNotPerformed);
               fault.then = [&] { ArmSyscallFault(system(0, 1)); };
               plan_.faults->Arm(fault);
             });
    PairPass("failed, and the next driver call refused", true,
             [&](std::uint64_t nth) {
               SyscallFault fault = system(nth, 1);
               fault.then = [&] {
                 plan_.faults->Arm(Either(0, 1, kNotPerformed));
               };
               ArmSyscallFault(fault);
             });
  }

  SweepPlan plan_;
  SweepResult result_;
  std::uint64_t substitutes_unharmed_ = 0;
};

}  // namespace

std::string SweepResult::Summary() const {
  return absl::StrCat("sweep ", name, ": ", driver_points + system_points,
                      " points (driver ", driver_points, ", system ",
                      system_points, "), once and for ever",
                      pair_points == 0 ? "" : ", and ",
                      pair_points == 0 ? "" : absl::StrCat(pair_points),
                      pair_points == 0 ? "" : " pairs");
}

SweepResult Sweep(const SweepPlan& plan) {
  platform::Check(static_cast<bool>(plan.run), "SweepPlan.run must be set");
  // Whoever is refused a thread that asks waits in vain.
  const ProductsLifelinePatience patience;
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
