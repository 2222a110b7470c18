// cuInit, and what a fork and the exit of the process are to the driver.
#include <chrono>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "platform/hostdriver/driver_version.h"
#include "platform/hostdriver/event_slots.h"
#include "platform/hostdriver/failures.h"
#include "platform/hostdriver/ipc_event.h"
#include "platform/hostdriver/kernels.h"
#include "platform/hostdriver/state.h"

namespace vmm::hostdriver {
namespace {

void OnFork() {
  if (CurrentPhase() == Phase::kReady) SetPhase(Phase::kForked);
}

// Ends the workers, so that none runs into torn-down memory. One that is in a
// host function cannot be ended; exit goes on without it after a moment.
void OnExit() {
  if (CurrentPhase() != Phase::kReady) return;
  SetPhase(Phase::kExiting);
  State& state = GetState();
  Lock lock(state.mu);
  state.stopping = true;
  state.progress.notify_all();
  state.progress.wait_for(lock, std::chrono::milliseconds(500),
                          [&state] { return state.workers == 0; });
  RemoveOwnEventFile();
  LeaveInstance();
}

}  // namespace
}  // namespace vmm::hostdriver

using namespace vmm::hostdriver;

CUresult CUDAAPI cuInit(unsigned int flags) {
  static std::mutex initialising;
  const std::lock_guard<std::mutex> once(initialising);
  switch (CurrentPhase()) {
    case Phase::kForked:
      return CUDA_ERROR_NOT_INITIALIZED;
    case Phase::kExiting:
      return CUDA_ERROR_DEINITIALIZED;
    case Phase::kNew:
    case Phase::kReady:
      break;
  }
  RETURN_IF_FAILED(Failures::Get().Count("cuInit"));
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (CurrentPhase() == Phase::kReady) return CUDA_SUCCESS;

  Config config = ReadConfig();
  const std::optional<std::vector<int>> visible = VisibleDevices(config);
  if (!visible) return CUDA_ERROR_INVALID_DEVICE;
  if (visible->empty()) return CUDA_ERROR_NO_DEVICE;
  if (config.kernels) {
    const VmmshareHostKernels register_all = OpenKernels(*config.kernels);
    register_all(&vmmshareHostAddKernel);
  }
  State& state = GetState();
  {
    const Lock lock(state.mu);
    state.config = std::move(config);
    state.visible = *visible;
  }
  if (!JoinInstance(state.config.machine)) return CUDA_ERROR_TIMEOUT;
  RemoveDeadEventFiles();
  WatchProcess(&OnFork, &OnExit);
  SetPhase(Phase::kReady);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDriverGetVersion(int* version) {
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *version = DriverVersion();
  return CUDA_SUCCESS;
}
