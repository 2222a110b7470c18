#include "platform/hostdriver/context.h"

#include <cstdint>

#include "platform/hostdriver/blocks.h"
#include "platform/hostdriver/capture.h"
#include "platform/hostdriver/module.h"
#include "platform/hostdriver/pool.h"
#include "platform/hostdriver/stream.h"

namespace vmm::hostdriver {
namespace {

// A plain array: a thread_local object would be destroyed before the static
// objects of the program, whose destructors may still call the driver.
struct ContextStack {
  static constexpr int kDepth = 64;
  CUcontext items[kDepth];
  int depth;
};
thread_local ContextStack stack;

// The device of the context that `id` is or was; -1 for other values.
int DeviceOf(const State& state, CUcontext id) {
  const auto made = state.made_contexts.find(id);
  if (made != state.made_contexts.end()) return made->second;
  for (const auto& [device, primary] : state.primaries) {
    if (primary.id == id) return device;
  }
  return -1;
}

// Ends the context of `primary`, if there is one.
void EndPrimary(State& state, const Primary& primary) {
  const std::shared_ptr<Context> context = primary.context;
  if (context != nullptr) DestroyContext(state, context);
}

}  // namespace

std::shared_ptr<Context> FindContext(State& state, const char* call,
                                     CUcontext id) {
  const auto found = state.contexts.find(id);
  if (found != state.contexts.end()) return found->second;
  if (DeviceOf(state, id) < 0) {
    StopOnHandle(state, call, "context", reinterpret_cast<std::uint64_t>(id));
  }
  return nullptr;
}

void DestroyContext(State& state, const std::shared_ptr<Context>& context) {
  context->destroyed = true;
  AbandonStreams(state, *context);
  UnloadModulesOf(state, *context);
  FreeBlocksOf(state, *context);
  state.contexts.erase(context->id);
  if (context->primary) state.primaries[context->device].context = nullptr;
  for (const auto& [id, other] : state.contexts) {
    other->peers.erase(context->id);
  }
  state.progress.notify_all();
}

bool PushContext(CUcontext id) {
  if (stack.depth == ContextStack::kDepth) return false;
  stack.items[stack.depth++] = id;
  return true;
}

void PopContext(CUcontext id) {
  if (stack.depth > 0 && stack.items[stack.depth - 1] == id) --stack.depth;
}

CUresult CurrentContext(State& state, std::shared_ptr<Context>* context) {
  if (stack.depth == 0) return CUDA_ERROR_INVALID_CONTEXT;
  const auto found = state.contexts.find(stack.items[stack.depth - 1]);
  if (found == state.contexts.end()) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  *context = found->second;
  return found->second->error;
}

int CurrentDeviceOr(State& state, int otherwise) {
  if (stack.depth == 0) return otherwise;
  const auto found = state.contexts.find(stack.items[stack.depth - 1]);
  return found == state.contexts.end() ? otherwise : found->second->device;
}

}  // namespace vmm::hostdriver

using namespace vmm::hostdriver;

CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  RETURN_IF_FAILED(Enter("cuDevicePrimaryCtxRetain"));
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  State& state = GetState();
  const Lock lock(state.mu);
  if (!state.IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  if (state.config.compute_mode == CU_COMPUTEMODE_PROHIBITED) {
    return CUDA_ERROR_DEVICE_UNAVAILABLE;
  }
  Primary& primary = state.primaries[device];
  if (primary.id == nullptr) {
    primary.id = reinterpret_cast<CUcontext>(state.NewHandle());
  }
  if (primary.context == nullptr) {
    primary.context = std::make_shared<Context>();
    primary.context->id = primary.id;
    primary.context->device = device;
    state.contexts[primary.id] = primary.context;
  }
  ++primary.retains;
  *context = primary.id;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice device) {
  RETURN_IF_FAILED(Enter("cuDevicePrimaryCtxRelease"));
  State& state = GetState();
  const Lock lock(state.mu);
  if (!state.IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  Primary& primary = state.primaries[device];
  if (primary.retains == 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (--primary.retains == 0) EndPrimary(state, primary);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevicePrimaryCtxReset(CUdevice device) {
  RETURN_IF_FAILED(Enter("cuDevicePrimaryCtxReset"));
  State& state = GetState();
  const Lock lock(state.mu);
  if (!state.IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  // Documented: who retained it still owes its releases.
  EndPrimary(state, state.primaries[device]);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevicePrimaryCtxGetState(CUdevice device,
                                            unsigned int* flags, int* active) {
  RETURN_IF_FAILED(Enter("cuDevicePrimaryCtxGetState"));
  if (flags == nullptr || active == nullptr) return CUDA_ERROR_INVALID_VALUE;
  State& state = GetState();
  const Lock lock(state.mu);
  if (!state.IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  *flags = 0;
  *active = state.primaries[device].context != nullptr;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetCurrent(CUcontext* context) {
  RETURN_IF_FAILED(Enter("cuCtxGetCurrent"));
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *context = stack.depth == 0 ? nullptr : stack.items[stack.depth - 1];
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSetCurrent(CUcontext context) {
  RETURN_IF_FAILED(Enter("cuCtxSetCurrent"));
  if (context == nullptr) {
    if (stack.depth > 0) --stack.depth;
    return CUDA_SUCCESS;
  }
  State& state = GetState();
  const Lock lock(state.mu);
  if (FindContext(state, "cuCtxSetCurrent", context) == nullptr) {
    return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  }
  if (stack.depth == 0) stack.depth = 1;
  stack.items[stack.depth - 1] = context;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxPushCurrent(CUcontext context) {
  RETURN_IF_FAILED(Enter("cuCtxPushCurrent"));
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  State& state = GetState();
  const Lock lock(state.mu);
  if (FindContext(state, "cuCtxPushCurrent", context) == nullptr) {
    return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  }
  return PushContext(context) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult CUDAAPI cuCtxPopCurrent(CUcontext* context) {
  RETURN_IF_FAILED(Enter("cuCtxPopCurrent"));
  if (stack.depth == 0) return CUDA_ERROR_INVALID_CONTEXT;
  --stack.depth;
  if (context != nullptr) *context = stack.items[stack.depth];
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetDevice(CUdevice* device) {
  RETURN_IF_FAILED(Enter("cuCtxGetDevice"));
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  State& state = GetState();
  const Lock lock(state.mu);
  if (stack.depth == 0) return CUDA_ERROR_INVALID_CONTEXT;
  // Measured: answered for a destroyed context too.
  *device = DeviceOf(state, stack.items[stack.depth - 1]);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSynchronize() {
  RETURN_IF_FAILED(Enter("cuCtxSynchronize"));
  State& state = GetState();
  Lock lock(state.mu);
  std::shared_ptr<Context> context;
  RETURN_IF_FAILED(CurrentContext(state, &context));
  RETURN_IF_FAILED(RefuseIfCaptured(state, *context));
  const CUresult result = WaitForContext(state, lock, context);
  ReleaseAtSynchronize(state);
  return result;
}
