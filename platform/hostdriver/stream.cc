#include "platform/hostdriver/stream.h"

#include <algorithm>
#include <utility>

#include "platform/hostdriver/capture.h"
#include "platform/hostdriver/context.h"
#include "platform/hostdriver/memory_os.h"
#include "platform/hostdriver/pool.h"

namespace vmm::hostdriver {
namespace {

bool IsIdle(const Stream& stream) {
  return stream.completed == stream.submitted;
}

bool IsReached(const Stream::Point& point) {
  return point.stream->completed >= point.count;
}

// What work submitted to `stream` now must wait for in other streams.
std::vector<Stream::Point> Predecessors(const State& state,
                                        const Stream& stream) {
  std::vector<Stream::Point> after;
  const auto add = [&after](const std::shared_ptr<Stream>& other) {
    if (!IsIdle(*other)) after.push_back({other, other->submitted});
  };
  if (stream.is_default) {
    for (const auto& [id, other] : state.streams) {
      if (other->blocking && other->context == stream.context) add(other);
    }
    for (const auto& other : state.draining) {
      if (other->blocking && other->context == stream.context) add(other);
    }
  } else if (stream.blocking && stream.context->default_stream != nullptr) {
    add(stream.context->default_stream);
  }
  return after;
}

void Run(const std::shared_ptr<Stream>& stream) {
  State& state = GetState();
  Lock lock(state.mu);
  for (;;) {
    state.progress.wait(lock, [&] {
      return !stream->queue.empty() || stream->closed || state.stopping;
    });
    if (state.stopping || stream->queue.empty()) break;
    Stream::Operation operation = std::move(stream->queue.front());
    stream->queue.pop_front();
    Context& context = *stream->context;
    state.progress.wait(lock, [&] {
      return MustAbandon(state, context) || AllReached(operation.after);
    });
    if (state.config.delay.count() != 0) {
      state.progress.wait_until(lock, operation.not_before,
                                [&] { return MustAbandon(state, context); });
    }
    const bool in_order =
        !MustAbandon(state, context) && context.error == CUDA_SUCCESS;
    if (in_order || operation.always) {
      const CUresult result = operation.work(state, lock);
      if (result != CUDA_SUCCESS && context.error == CUDA_SUCCESS) {
        context.error = result;
      }
    }
    // What the work holds is freed before anybody sees it as done.
    operation = {};
    ++stream->completed;
    state.progress.notify_all();
  }
  // The streams that wait for this one must not wait for ever.
  stream->queue.clear();
  stream->completed = stream->submitted;
  stream->has_worker = false;
  std::erase(state.draining, stream);
  --state.workers;
  state.progress.notify_all();
}

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

}  // namespace

bool AllReached(const std::vector<Stream::Point>& points) {
  return std::all_of(points.begin(), points.end(), IsReached);
}

std::vector<Stream::Point> PointsBeforeNow(
    const State& state, const std::shared_ptr<Stream>& stream) {
  std::vector<Stream::Point> points = Predecessors(state, *stream);
  if (!IsIdle(*stream)) points.push_back({stream, stream->submitted});
  return points;
}

bool MustAbandon(const State& state, const Context& context) {
  return state.stopping || context.destroyed;
}

bool MustGiveUp(const State& state, const Context& context) {
  return MustAbandon(state, context) || context.error != CUDA_SUCCESS;
}

CUresult LookUpStream(State& state, const char* call, CUstream id,
                      std::shared_ptr<Stream>* stream) {
  if (id == CU_STREAM_PER_THREAD) return CUDA_ERROR_NOT_SUPPORTED;
  if (id == nullptr || id == CU_STREAM_LEGACY) {
    std::shared_ptr<Context> context;
    const CUresult result = CurrentContext(state, &context);
    if (result == CUDA_SUCCESS) *stream = DefaultStream(context);
    return result;
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

namespace {

CUresult SubmitOperation(State& state, const std::shared_ptr<Stream>& stream,
                         Work work, bool always,
                         std::vector<Stream::Point> after = {}) {
  if (stream->capture != nullptr) return AddToCapture(*stream, std::move(work));
  if (!stream->has_worker) {
    if (!StartThread([stream] { Run(stream); })) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    stream->has_worker = true;
    ++state.workers;
  }
  if (stream->runs_here) after.push_back({stream, stream->submitted});
  for (Stream::Point& point : Predecessors(state, *stream)) {
    after.push_back(std::move(point));
  }
  stream->queue.push_back(
      {std::move(work), std::move(after),
       std::chrono::steady_clock::now() + state.config.delay, always});
  ++stream->submitted;
  state.progress.notify_all();
  return CUDA_SUCCESS;
}

}  // namespace

CUresult Submit(State& state, const std::shared_ptr<Stream>& stream,
                Work work) {
  return SubmitOperation(state, stream, std::move(work), /*always=*/false);
}

CUresult SubmitAlways(State& state, const std::shared_ptr<Stream>& stream,
                      Work work) {
  return SubmitOperation(state, stream, std::move(work), /*always=*/true);
}

CUresult SubmitWait(State& state, const std::shared_ptr<Stream>& stream,
                    std::vector<Stream::Point> points) {
  return SubmitOperation(
      state, stream, [](State&, Lock&) { return CUDA_SUCCESS; },
      /*always=*/true, std::move(points));
}

CUresult RunAndWait(State& state, Lock& lock,
                    const std::shared_ptr<Stream>& stream, Work work) {
  Context& context = *stream->context;
  if (stream->capture != nullptr) return AddToCapture(*stream, std::move(work));
  // With nothing to wait for, the caller's thread does as well as a worker's.
  if (IsIdle(*stream) && Predecessors(state, *stream).empty()) {
    ++stream->submitted;
    stream->runs_here = true;
    const CUresult result = work(state, lock);
    if (result != CUDA_SUCCESS && context.error == CUDA_SUCCESS) {
      context.error = result;
    }
    stream->runs_here = false;
    if (!IsIdle(*stream)) ++stream->completed;
    state.progress.notify_all();
    return result;
  }
  RETURN_IF_FAILED(Submit(state, stream, std::move(work)));
  return WaitForStream(state, lock, stream);
}

CUresult WaitForStream(State& state, Lock& lock,
                       const std::shared_ptr<Stream>& stream) {
  std::vector<Stream::Point> points;
  // The NULL stream stands for the context's blocking streams too.
  if (stream->is_default) points = Predecessors(state, *stream);
  points.push_back({stream, stream->submitted});
  state.progress.wait(lock,
                      [&] { return state.stopping || AllReached(points); });
  if (state.stopping) return CUDA_ERROR_DEINITIALIZED;
  if (stream->context->destroyed) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  return stream->context->error;
}

CUresult WaitForContext(State& state, Lock& lock,
                        const std::shared_ptr<Context>& context) {
  std::vector<std::shared_ptr<Stream>> all;
  for (const auto& [id, stream] : state.streams) {
    if (stream->context == context) all.push_back(stream);
  }
  for (const std::shared_ptr<Stream>& stream : state.draining) {
    if (stream->context == context) all.push_back(stream);
  }
  if (context->default_stream != nullptr) {
    all.push_back(context->default_stream);
  }
  for (const std::shared_ptr<Stream>& stream : all) {
    RETURN_IF_FAILED(WaitForStream(state, lock, stream));
  }
  return context->error;
}

CUresult MakeStream(State& state, unsigned int flags, int priority,
                    CUstream* id) {
  std::shared_ptr<Context> context;
  RETURN_IF_FAILED(CurrentContext(state, &context));
  if (id == nullptr ||
      (flags != CU_STREAM_DEFAULT && flags != CU_STREAM_NON_BLOCKING)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  auto stream = std::make_shared<Stream>();
  stream->context = context;
  stream->priority = priority;
  stream->blocking = flags == CU_STREAM_DEFAULT;
  *id = reinterpret_cast<CUstream>(state.NewHandle());
  state.streams[*id] = std::move(stream);
  return CUDA_SUCCESS;
}

void AbandonStreams(State& state, Context& context) {
  for (auto at = state.streams.begin(); at != state.streams.end();) {
    if (at->second->context.get() == &context) {
      at->second->closed = true;
      AbandonCapture(state, *at->second);
      at = state.streams.erase(at);
    } else {
      ++at;
    }
  }
  if (context.default_stream != nullptr) {
    context.default_stream->closed = true;
    context.default_stream = nullptr;  // Streams refer back to their context.
  }
  state.progress.notify_all();
}

}  // namespace vmm::hostdriver

using namespace vmm::hostdriver;

CUresult CUDAAPI cuStreamCreate(CUstream* id, unsigned int flags) {
  RETURN_IF_FAILED(Enter("cuStreamCreate"));
  State& state = GetState();
  const Lock lock(state.mu);
  return MakeStream(state, flags, /*priority=*/0, id);
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
  if (!IsIdle(*stream)) state.draining.push_back(stream);
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
  const bool idle = IsIdle(*stream) && (!stream->is_default ||
                                        Predecessors(state, *stream).empty());
  return idle ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
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
  RETURN_IF_FAILED(LookUpStream(state, "cuStreamGetCtx", id, &stream));
  *context = stream->context->id;
  return CUDA_SUCCESS;
}
