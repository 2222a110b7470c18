#include "tests/support/sweep_judge.h"

#include <algorithm>
#include <limits>
#include <map>
#include <string_view>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace vmm::testing::internal {
namespace {

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

// Whether `list` has the call, with any error or with this one.
bool Lists(const std::vector<std::string>& list, const FailedCall& failed) {
  for (const std::string& one : list) {
    if (one == failed.call ||
        one == absl::StrCat(failed.call, ":", failed.error)) {
      return true;
    }
  }
  return false;
}

bool MayFailSilently(const SweepPlan& plan, const Run& run,
                     const FailedCall& failed) {
  // Whoever was interrupted asks again.
  // EAGAIN of a thread's start means that there are too many.
  const bool asked_again =
      failed.error == "EINTR" ||
      (failed.error == "EAGAIN" && !absl::StrContains(failed.call, "thread"));
  // The thread's mode beside a capture of a stream: there is none.
  const bool is_mode = failed.call == "cuThreadExchangeStreamCaptureMode";
  // Tried in order to say, beside a failure, whether there are too many threads.
  const bool is_advice = failed.call == "pthread_create";
  return asked_again || is_mode || is_advice ||
         Lists(plan.may_fail_silently, failed) ||
         (run.substituted && Lists(plan.substitute.instead_of, failed));
}

// What is wrong with an error that the operation returned.
std::vector<std::string> JudgeError(const SweepPlan& plan, const Run& run,
                                    const absl::Status& status) {
  std::vector<std::string> problems;
  const std::string message(status.message());
  bool named = false;
  bool told_in_words = false;
  for (const FailedCall& failed : run.failed) {
    named = named || Names(message, failed.call);
    told_in_words = told_in_words || Lists(plan.told_in_words, failed);
  }
  if (message.empty()) {
    problems.push_back(
        absl::StrCat("the error has no message: ", status.ToString()));
  } else if (plan.status_names_call && !named && !told_in_words) {
    problems.push_back(
        absl::StrCat("the error does not name the call: ", status.ToString()));
  }
  if (status.code() == absl::StatusCode::kUnknown) {
    problems.push_back(
        absl::StrCat("the error has the code UNKNOWN: ", status.ToString()));
  }
  return problems;
}

// Of a pair: which calls failed and nobody was told of.
std::vector<std::string> JudgeEach(const SweepPlan& plan, const Run& run,
                                   const absl::Status& status,
                                   std::vector<std::string> told) {
  std::vector<std::string> problems;
  if (!status.ok()) told.emplace_back(status.message());
  for (const FailedCall& failed : run.failed) {
    // One line tells of one call, except where a status speaks of both.
    const auto tells = std::find_if(
        told.begin(), told.end(),
        [&](const std::string& line) { return Names(line, failed.call); });
    if (tells != told.end()) {
      if (*tells != status.message()) told.erase(tells);
      continue;
    }
    const bool lost = failed.is_drivers() && failed.is_release;
    const bool excused = lost ? false
                              : !status.ok() || failed.is_release ||
                                    MayFailSilently(plan, run, failed);
    if (!excused) {
      problems.push_back(
          absl::StrCat(failed.call,
                       " failed, and neither the status nor a report on "
                       "standard error says so; the status: ",
                       status.ToString()));
    }
  }
  return problems;
}

// How much more of each thing may be there when `call` was refused.
std::map<std::string, std::uint64_t> LossesOf(std::string_view call) {
  constexpr std::uint64_t kAny = std::numeric_limits<std::uint64_t>::max();
  if (call == "cuMemRelease") {
    return {{"handles", 1},
            {"imported handles", 1},
            {"references to handles", 1},
            {"bytes", kAny}};
  }
  // One call unmaps all chunks. Addresses that are mapped cannot be given back.
  if (call == "cuMemUnmap") {
    return {{"mappings", kAny}, {"address reservations", 1}, {"bytes", kAny}};
  }
  if (call == "cuMemAddressFree") return {{"address reservations", 1}};
  if (call == "cuDevicePrimaryCtxRelease") {
    return {{"primary context retains", 1}};
  }
  if (call == "cuCtxPopCurrent")
    return {{"current context", kAny}, {kContexts, kAny}};
  if (call == "cuStreamDestroy") return {{"streams", 1}};
  if (call == "cuEventDestroy") return {{"events", 1}};
  if (call == "cuMemFree") return {{"device blocks", 1}};
  if (call == "cuMemFreeHost") return {{"host blocks", 1}};
  if (call == "cuMemFreeAsync") return {{"pool blocks", 1}};
  if (call == "cuIpcCloseMemHandle") return {{"opened legacy IPC handles", 1}};
  return {};
}

}  // namespace

std::vector<std::string> Judge(const SweepPlan& plan, const Rules& rules,
                               const Run& run, const absl::Status& status,
                               const std::vector<std::string>& reports) {
  if (run.failed.empty()) {
    if (status.ok()) return {};
    return {absl::StrCat("no call failed, and yet it answered ",
                         status.ToString())};
  }
  if (rules.must_succeed && !status.ok()) {
    return {
        absl::StrCat("must go unnoticed, but it answered ", status.ToString())};
  }
  std::vector<std::string> problems;
  if (!status.ok()) problems = JudgeError(plan, run, status);
  if (rules.pair) {
    for (std::string& line : JudgeEach(plan, run, status, reports)) {
      problems.push_back(std::move(line));
    }
    return problems;
  }
  if (!status.ok()) return problems;

  bool excused = rules.must_succeed || rules.may_hide;
  for (const std::string& report : reports) {
    for (const FailedCall& failed : run.failed) {
      excused = excused || Names(report, failed.call);
    }
  }
  if (excused || std::all_of(run.failed.begin(), run.failed.end(),
                             [&](const FailedCall& failed) {
                               return MayFailSilently(plan, run, failed);
                             })) {
    return {};
  }
  return {"the failure was swallowed: OK, and no report on standard error"};
}

Inventory WithLosses(Inventory before, const Inventory& now,
                     const std::vector<FailedCall>& failed) {
  std::map<std::string, std::uint64_t> losses;
  for (const FailedCall& one : failed) {
    if (!one.is_drivers() || !one.is_release) continue;
    for (const auto& [name, most] : LossesOf(one.call)) {
      std::uint64_t& sum = losses[name];
      sum = sum > std::numeric_limits<std::uint64_t>::max() - most
                ? std::numeric_limits<std::uint64_t>::max()
                : sum + most;
    }
  }
  for (const auto& [name, most] : losses) {
    const auto found = now.find(name);
    if (found == now.end() || !before.contains(name)) continue;
    std::uint64_t& then = before[name];
    if (name == "current context" ||
        (found->second >= then && found->second - then <= most)) {
      then = found->second;
    }
  }
  if (losses.contains("bytes")) {
    // Of a real driver it is seen by what is free.
    for (auto& [name, then] : before) {
      const auto found = now.find(name);
      if (absl::StartsWith(name, kFreeBytes) && found != now.end()) {
        then = found->second;
      }
    }
  }
  return before;
}

bool MayHold(const std::vector<FailedCall>& failed, const std::string& what) {
  const bool is_section = absl::StartsWith(what, "Section ");  // Windows.
  const bool is_memory =
      is_section || absl::StrContains(what, "/memfd:vmmhost");
  const bool is_event = is_section || absl::StartsWith(what, "/dev/shm/#");
  return std::any_of(failed.begin(), failed.end(), [&](const FailedCall& one) {
    const auto losses = LossesOf(one.call);
    return (is_event && losses.contains("events")) ||
           (is_memory &&
            (losses.contains("bytes") || losses.contains("host blocks") ||
             losses.contains("device blocks")));
  });
}

}  // namespace vmm::testing::internal
