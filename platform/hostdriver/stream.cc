#include "platform/hostdriver/stream.h"

#include <algorithm>
#include <utility>

#include "platform/hostdriver/capture.h"
#include "platform/hostdriver/context.h"
#include "platform/hostdriver/pool.h"

namespace vmm::hostdriver {
namespace {

// Priorities are told, and of no effect. Those of an H100; lower numbers come
// first.
constexpr int kLeast = 0;
constexpr int kGreatest = -5;

// The context's NULL stream, made now if need be.
std::shared_ptr<Stream> DefaultStream(const std::shared_ptr<Context>& context) {
  if (context->default_stream == nullptr) {
    auto stream = std::make_shared<Stream>();
    stream->context = context;
    stream->is_default = true;
    context->default_stream = std::move(stream);
  }
  return context->default_stream;
}

// A new stream of the calling thread's context, with CU_STREAM_* flags.
CUresult MakeStream(State& state, unsigned int flags, int priority,
                    CUstream* id) {
  if (id == nullptr ||
      (flags != CU_STREAM_DEFAULT && flags != CU_STREAM_NON_BLOCKING)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::shared_ptr<Context> context;
  RETURN_IF_FAILED(CurrentContext(state, &context));
  auto stream = std::make_shared<Stream>();
  stream->context = context;
  stream->priority = priority;
  stream->blocking = flags == CU_STREAM_DEFAULT;
  *id = reinterpret_cast<CUstream>(state.NewHandle());
  state.streams[*id] = std::move(stream);
  return CUDA_SUCCESS;
}

}  // namespace

CUresult LookUpStream(State& state, const char* call, CUstream id,
                      std::shared_ptr<Stream>* stream) {
  if (id == CU_STREAM_PER_THREAD) return CUDA_ERROR_NOT_SUPPORTED;
  if (id == nullptr || id == CU_STREAM_LEGACY) {
    std::shared_ptr<Context> context;
    RETURN_IF_FAILED(CurrentContext(state, &context));
    *stream = DefaultStream(context);
    return CUDA_SUCCESS;
  }
  *stream = FindOrStop(state, call, "stream", state.streams, id);
  return (*stream)->context->error;
}

CUresult FindStream(State& state, const char* call, CUstream id,
                    std::shared_ptr<Stream>* stream) {
  const CUresult found = LookUpStream(state, call, id, stream);
  return found != CUDA_SUCCESS || !(*stream)->is_default
             ? found
             : RefuseImplicit(state, *(*stream)->context, /*invalidate=*/true);
}

void AbandonStreams(State& state, Context& context) {
  std::erase_if(state.streams, [&](const auto& entry) {
    Stream& stream = *entry.second;
    if (stream.context.get() != &context) return false;
    stream.closed = true;
    AbandonCapture(state, stream);
    return true;
  });
  if (context.default_stream != nullptr) {
    context.default_stream->closed = true;
    context.default_stream = nullptr;  // Streams refer back to their context.
  }
}

}  // namespace vmm::hostdriver

using namespace vmm::hostdriver;

CUresult CUDAAPI cuStreamCreate(CUstream* id, unsigned int flags) {
  RETURN_IF_FAILED(Enter("cuStreamCreate"));
  State& state = GetState();
  const Lock lock(state.mu);
  return MakeStream(state, flags, /*priority=*/0, id);
}

CUresult CUDAAPI cuStreamCreateWithPriority(CUstream* id, unsigned int flags,
                                            int priority) {
  RETURN_IF_FAILED(Enter("cuStreamCreateWithPriority"));
  State& state = GetState();
  const Lock lock(state.mu);
  // As cuda.h has it: one out of range becomes the next within.
  return MakeStream(state, flags, std::clamp(priority, kGreatest, kLeast), id);
}

CUresult CUDAAPI cuStreamDestroy(CUstream id) {
  RETURN_IF_FAILED(Enter("cuStreamDestroy"));
  State& state = GetState();
  const Lock lock(state.mu);
  if (id == nullptr || id == CU_STREAM_LEGACY || id == CU_STREAM_PER_THREAD) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  std::shared_ptr<Stream> stream;
  const CUresult result = FindStream(state, "cuStreamDestroy", id, &stream);
  AbandonCapture(state, *stream);
  // Work that is queued is still done, by the worker alone.
  stream->closed = true;
  state.streams.erase(id);
  if (!stream->IsIdle()) state.draining.push_back(stream);
  state.progress.notify_all();
  return result;
}

CUresult CUDAAPI cuStreamQuery(CUstream id) {
  RETURN_IF_FAILED(Enter("cuStreamQuery"));
  State& state = GetState();
  const Lock lock(state.mu);
  std::shared_ptr<Stream> stream;
  RETURN_IF_FAILED(FindStream(state, "cuStreamQuery", id, &stream));
  RETURN_IF_FAILED(RefuseIfCaptured(*stream));
  return AllReached(PointsOf(state, stream)) ? CUDA_SUCCESS
                                             : CUDA_ERROR_NOT_READY;
}

CUresult CUDAAPI cuStreamSynchronize(CUstream id) {
  RETURN_IF_FAILED(Enter("cuStreamSynchronize"));
  State& state = GetState();
  Lock lock(state.mu);
  std::shared_ptr<Stream> stream;
  RETURN_IF_FAILED(FindStream(state, "cuStreamSynchronize", id, &stream));
  RETURN_IF_FAILED(RefuseIfCaptured(*stream));
  const CUresult result = WaitForStream(state, lock, stream);
  ReleaseAtSynchronize(state);
  return result;
}

CUresult CUDAAPI cuStreamGetCtx(CUstream id, CUcontext* context) {
  RETURN_IF_FAILED(Enter("cuStreamGetCtx"));
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  State& state = GetState();
  const Lock lock(state.mu);
  std::shared_ptr<Stream> stream;
  RETURN_IF_FAILED(FindStream(state, "cuStreamGetCtx", id, &stream));
  RETURN_IF_FAILED(RefuseIfLost(*stream));
  *context = stream->context->id;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  RETURN_IF_FAILED(Enter("cuCtxGetStreamPriorityRange"));
  State& state = GetState();
  const Lock lock(state.mu);
  std::shared_ptr<Context> context;
  RETURN_IF_FAILED(CurrentContext(state, &context));
  if (least != nullptr) *least = kLeast;
  if (greatest != nullptr) *greatest = kGreatest;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamGetPriority(CUstream id, int* priority) {
  RETURN_IF_FAILED(Enter("cuStreamGetPriority"));
  if (priority == nullptr) return CUDA_ERROR_INVALID_VALUE;
  State& state = GetState();
  const Lock lock(state.mu);
  std::shared_ptr<Stream> stream;
  RETURN_IF_FAILED(FindStream(state, "cuStreamGetPriority", id, &stream));
  RETURN_IF_FAILED(RefuseIfLost(*stream));
  *priority = stream->priority;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamGetFlags(CUstream id, unsigned int* flags) {
  RETURN_IF_FAILED(Enter("cuStreamGetFlags"));
  if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  State& state = GetState();
  const Lock lock(state.mu);
  std::shared_ptr<Stream> stream;
  RETURN_IF_FAILED(FindStream(state, "cuStreamGetFlags", id, &stream));
  RETURN_IF_FAILED(RefuseIfCaptured(*stream));
  *flags = stream->blocking ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING;
  return CUDA_SUCCESS;
}
