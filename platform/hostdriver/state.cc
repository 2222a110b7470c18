#include "platform/hostdriver/state.h"

#include <algorithm>
#include <atomic>
#include <string>

#include "platform/hostdriver/capture.h"
#include "platform/hostdriver/failures.h"
#include "platform/hostdriver/misuse.h"

namespace vmm::hostdriver {
namespace {

std::atomic<Phase> phase{Phase::kNew};
thread_local bool in_host_function = false;

}  // namespace

int State::PhysicalOf(const Uuid& uuid) const {
  const auto found = std::find(config.uuids.begin(), config.uuids.end(), uuid);
  return found == config.uuids.end()
             ? -1
             : static_cast<int>(found - config.uuids.begin());
}

int State::OrdinalOf(int physical) const {
  const auto found = std::find(visible.begin(), visible.end(), physical);
  return found == visible.end() ? -2
                                : static_cast<int>(found - visible.begin());
}

State& GetState() {
  static State& state = *new State;
  return state;
}

Phase CurrentPhase() { return phase.load(); }
void SetPhase(Phase now) { phase.store(now); }
void SetInHostFunction(bool now) { in_host_function = now; }

CUresult Enter(const char* name) {
  switch (CurrentPhase()) {
    case Phase::kNew:
    case Phase::kForked:
      return CUDA_ERROR_NOT_INITIALIZED;
    case Phase::kExiting:
      return CUDA_ERROR_DEINITIALIZED;
    case Phase::kReady:
      break;
  }
  if (in_host_function) return CUDA_ERROR_NOT_PERMITTED;
  const CUresult result = Failures::Get().Count(name);
  return result != CUDA_SUCCESS ? result : CheckBesideCaptures(name);
}

void StopOnHandle(const State& state, const char* call, const char* what,
                  std::uint64_t handle) {
  Stop(std::string(call) + ": " + what + " " + Hex(handle) +
       (state.WasIssued(handle)
            ? " was already released; CUDA leaves its use undefined"
            : " was never issued by this driver; CUDA leaves its use "
              "undefined"));
}

}  // namespace vmm::hostdriver
