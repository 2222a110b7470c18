#include "platform/hostdriver/made_context.h"

#include "platform/hostdriver/context.h"

namespace vmm::hostdriver {
namespace {

CUresult Make(CUcontext* made, unsigned int flags, CUdevice device) {
  RETURN_IF_FAILED(Enter("cuCtxCreate"));
  // How a thread waits, and the like: a model's threads all wait alike.
  if (made == nullptr || (flags & ~CU_CTX_FLAGS_MASK) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  State& state = GetState();
  const Lock lock(state.mu);
  if (!state.IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  if (state.config.compute_mode == CU_COMPUTEMODE_PROHIBITED) {
    return CUDA_ERROR_DEVICE_UNAVAILABLE;
  }
  auto context = std::make_shared<Context>();
  context->id = reinterpret_cast<CUcontext>(state.NewHandle());
  context->device = device;
  context->primary = false;
  if (!PushContext(context->id)) return CUDA_ERROR_OUT_OF_MEMORY;
  *made = context->id;
  state.made_contexts[context->id] = device;
  state.contexts[context->id] = std::move(context);
  return CUDA_SUCCESS;
}

// The current context and the other one that it may, or may no more, reach.
CUresult FindPair(State& state, const char* call, CUcontext peer,
                  std::shared_ptr<Context>* current,
                  std::shared_ptr<Context>* other) {
  RETURN_IF_FAILED(CurrentContext(state, current));
  if (peer == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *other = FindContext(state, call, peer);
  return *other == nullptr || *other == *current ? CUDA_ERROR_INVALID_CONTEXT
                                                 : CUDA_SUCCESS;
}

}  // namespace
}  // namespace vmm::hostdriver

using namespace vmm::hostdriver;

CUresult CUDAAPI cuCtxCreate_v2(CUcontext* context, unsigned int flags,
                                CUdevice device) {
  return Make(context, flags, device);
}

CUresult CUDAAPI cuCtxCreate_v3(CUcontext* context, CUexecAffinityParam*,
                                int count, unsigned int flags,
                                CUdevice device) {
  // A share of the multiprocessors, which there are none of.
  if (count != 0) return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
  return Make(context, flags, device);
}

CUresult CUDAAPI cuCtxCreate_v4(CUcontext* context,
                                CUctxCreateParams* parameters,
                                unsigned int flags, CUdevice device) {
  if (parameters != nullptr) {
    if (parameters->numExecAffinityParams != 0) {
      return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
    }
    if (parameters->cigParams != nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  }
  return Make(context, flags, device);
}

CUresult CUDAAPI cuCtxDestroy(CUcontext id) {
  RETURN_IF_FAILED(Enter("cuCtxDestroy"));
  if (id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  State& state = GetState();
  const Lock lock(state.mu);
  const std::shared_ptr<Context> context =
      FindOrStop(state, "cuCtxDestroy", "context", state.contexts, id);
  if (context->primary) return CUDA_ERROR_INVALID_CONTEXT;
  PopContext(id);
  DestroyContext(state, context);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags) {
  RETURN_IF_FAILED(Enter("cuCtxEnablePeerAccess"));
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  State& state = GetState();
  const Lock lock(state.mu);
  std::shared_ptr<Context> context;
  std::shared_ptr<Context> other;
  RETURN_IF_FAILED(
      FindPair(state, "cuCtxEnablePeerAccess", peer, &context, &other));
  if (context->device == other->device ||
      !state.config.ArePeers(state.visible[context->device],
                             state.visible[other->device])) {
    return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  }
  return context->peers.insert(peer).second
             ? CUDA_SUCCESS
             : CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
}

CUresult CUDAAPI cuCtxDisablePeerAccess(CUcontext peer) {
  RETURN_IF_FAILED(Enter("cuCtxDisablePeerAccess"));
  State& state = GetState();
  const Lock lock(state.mu);
  std::shared_ptr<Context> context;
  std::shared_ptr<Context> other;
  RETURN_IF_FAILED(
      FindPair(state, "cuCtxDisablePeerAccess", peer, &context, &other));
  return context->peers.erase(peer) == 1 ? CUDA_SUCCESS
                                         : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
}
