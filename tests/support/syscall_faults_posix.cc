#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/support/syscall_faults.h"
#include "tests/support/syscall_table_posix.h"

namespace vmm::testing {
namespace {

struct State {
  std::mutex mutex;
  SyscallFault fault;
  FaultTrigger trigger;
  SyscallOutcome outcome;
  std::map<std::string, std::uint64_t> by_name;
};

State& TheState() {
  static State* const state = new State;
  return *state;
}

// The process in which a fault is armed, or 0. Read before the lock is taken,
// so that a forked child, which may have inherited it locked, passes by.
std::atomic<pid_t> armed_in = 0;

// Whoever is interrupted asks again, for ever if need be. A thread that cannot
// be started (EAGAIN) is not asked for again.
bool WouldWaitForEver(const internal::TableRow& row,
                      const SyscallFault& fault) {
  return fault.point.times == FaultPoint::kForEver &&
         fault.error_index < row.ErrorCount() &&
         IsTransient(row.errors[fault.error_index]) &&
         row.name.find("thread") == std::string_view::npos;
}

bool IsChosen(const internal::TableRow& row, const SyscallFault& fault) {
  if (!fault.only_call.empty()) return row.name == fault.only_call;
  if (row.kind == CallKind::kNamed) return false;
  if (fault.only_error != 0) return row.Documents(fault.only_error);
  return (row.kind == fault.calls || fault.calls == CallKind::kAny) &&
         !WouldWaitForEver(row, fault);
}

}  // namespace

namespace internal {

SyscallDecision DecideSyscall(const TableRow& row) {
  const pid_t armed = armed_in.load();
  if (armed == 0 || armed != getpid()) return {};
  // What a call leaves in errno when it succeeds is the caller's business.
  const int saved = errno;
  SyscallDecision decision;
  std::function<void()> then;
  {
    State& state = TheState();
    const std::lock_guard lock(state.mutex);
    const SyscallFault& fault = state.fault;
    if (!state.trigger.armed()) return {};
    ++state.by_name[std::string(row.name)];
    if (IsChosen(row, fault) && state.trigger.Count()) {
      if (fault.only_error == 0 && fault.error_index >= row.ErrorCount()) {
        state.outcome.no_such_error = true;
      } else {
        decision.error = fault.only_error != 0 ? fault.only_error
                                               : row.errors[fault.error_index];
        // A close that answers an error has closed all the same.
        decision.perform = row.kind == CallKind::kRelease;
        state.outcome.failed.push_back(
            {std::string(row.name), decision.error, row.kind});
        if (state.trigger.fired() == 1) then = fault.then;
      }
    }
  }
  if (then) then();
  errno = saved;
  return decision;
}

void NoteUnlisted(long number) {
  const pid_t armed = armed_in.load();
  if (armed == 0 || armed != getpid()) return;
  State& state = TheState();
  const std::lock_guard lock(state.mutex);
  std::vector<long>& unlisted = state.outcome.unlisted;
  if (std::find(unlisted.begin(), unlisted.end(), number) == unlisted.end()) {
    unlisted.push_back(number);
  }
}

}  // namespace internal

bool SyscallFaultsSupported() { return true; }

void ArmSyscallFault(const SyscallFault& fault) {
  State& state = TheState();
  const std::lock_guard lock(state.mutex);
  state.fault = fault;
  state.outcome = {};
  state.trigger.Arm(fault.point);
  armed_in = getpid();
}

SyscallOutcome DisarmSyscallFault() {
  armed_in = 0;
  State& state = TheState();
  const std::lock_guard lock(state.mutex);
  if (!state.trigger.armed()) return {};
  state.trigger.Disarm();
  state.outcome.counted = state.trigger.counted();
  state.outcome.fired = state.trigger.fired();
  return std::move(state.outcome);
}

std::map<std::string, std::uint64_t> SyscallsByName() {
  State& state = TheState();
  const std::lock_guard lock(state.mutex);
  return state.by_name;
}

std::vector<SyscallRow> SyscallTable() {
  std::vector<SyscallRow> rows;
  for (const internal::TableRow& row : internal::kTable) {
    rows.push_back({std::string(row.name), row.kind,
                    std::vector<int>(row.errors.begin(),
                                     row.errors.begin() + row.ErrorCount())});
  }
  return rows;
}

bool IsTransient(int error) { return error == EINTR || error == EAGAIN; }

std::string ErrnoName(int error) {
  const char* name = strerrorname_np(error);
  return name != nullptr ? name : absl::StrCat("errno ", error);
}

}  // namespace vmm::testing
