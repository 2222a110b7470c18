#include "tests/support/steps.h"

#include <atomic>
#include <cerrno>
#include <chrono>
#include <mutex>
#include <shared_mutex>
#include <string_view>
#include <utility>

#include "platform/base/check.h"
#include "platform/os/process.h"
#include "tests/support/child.h"

namespace vmm::testing {
namespace {

struct State {
  std::mutex mutex;
  StepTrap trap;
  std::vector<const char*> names;
  // Shared by threads in driver calls that do not wait for other work: who
  // stops here has them finish first.
  std::shared_timed_mutex driver_calls;
  std::mutex hanging_up;  // Held by the thread that does.
};

State& TheState() {
  static State* const state = new State;
  return *state;
}

// The process in which steps are counted, or 0.
std::atomic<std::int64_t> armed_in = 0;

// While one thread hangs up, the others make no step more: what they would do
// next, they would do because of it.
std::atomic<bool> hanging_up = false;
thread_local bool this_thread_hangs_up = false;

// Calls of the driver that this thread is in. What a driver calls is no step of
// the library's: a stand-in that takes functions of the C++ library out of this
// program comes by here, too.
thread_local int driver_calls_of_this_thread = 0;

bool IsArmed() {
  const std::int64_t process = armed_in.load(std::memory_order_acquire);
  return process != 0 && process == platform::CurrentProcessId();
}

// Whether `call` may wait for what another thread or process does.
bool WaitsForWork(std::string_view call) {
  return call.find("Synchronize") != std::string_view::npos ||
         call.substr(0, 8) == "cuMemcpy" || call.substr(0, 8) == "cuMemset" ||
         call == "cuStreamDestroy" || call == "cuMemFree" ||
         call == "cuDevicePrimaryCtxRelease";
}

void Spring(StepEffect effect) {
  armed_in = 0;  // What is called from here on is no step.
  if (effect == StepEffect::kKill) KillThisProcess();
  const int saved = errno;
  State& state = TheState();
  std::unique_lock<std::shared_timed_mutex> quiet(state.driver_calls,
                                                  std::chrono::seconds(10));
  platform::Check(quiet.owns_lock(),
                  "a driver call has not returned for 10 s; if it waits for "
                  "work, WaitsForWork() must say so");
  if (effect == StepEffect::kHangUp) {
    const std::lock_guard<std::mutex> others_wait(state.hanging_up);
    this_thread_hangs_up = true;
    hanging_up = true;
    internal::HangUpAndStop();
    hanging_up = false;
  } else {
    internal::StopThisProcess();
  }
  errno = saved;
}

}  // namespace

void ArmSteps(const StepTrap& trap) {
  State& state = TheState();
  const std::lock_guard<std::mutex> lock(state.mutex);
  state.trap = trap;
  state.names.clear();
  armed_in.store(platform::CurrentProcessId(), std::memory_order_release);
}

std::vector<std::string> DisarmSteps() {
  armed_in = 0;
  State& state = TheState();
  const std::lock_guard<std::mutex> lock(state.mutex);
  return {state.names.begin(), state.names.end()};
}

void MarkStep(const char* name) { const internal::Step step(name); }

namespace internal {

Step::Step(const char* name, StepKind kind) : kind_(kind) {
  if (kind == StepKind::kDriverCall) {
    ++driver_calls_of_this_thread;
  } else if (driver_calls_of_this_thread > 0) {
    return;
  }
  if (hanging_up && !this_thread_hangs_up) {
    const std::lock_guard<std::mutex> wait(TheState().hanging_up);
  }
  if (armed_in.load(std::memory_order_relaxed) == 0 || !IsArmed()) return;
  const int saved = errno;
  State& state = TheState();
  bool springs = false;
  {
    const std::lock_guard<std::mutex> lock(state.mutex);
    const bool due = state.trap.effect != StepEffect::kCount &&
                     state.names.size() == state.trap.nth;
    state.names.push_back(name);
    springs = due && !state.trap.after;
    springs_after_ = due && state.trap.after;
  }
  errno = saved;
  if (springs) Spring(state.trap.effect);
  if (kind == StepKind::kDriverCall && !WaitsForWork(name)) {
    state.driver_calls.lock_shared();
    in_driver_ = true;
  }
}

Step::~Step() {
  if (kind_ == StepKind::kDriverCall) --driver_calls_of_this_thread;
  State& state = TheState();
  if (in_driver_) state.driver_calls.unlock_shared();
  if (springs_after_) Spring(state.trap.effect);
}

}  // namespace internal
}  // namespace vmm::testing
