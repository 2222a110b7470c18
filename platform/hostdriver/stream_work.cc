// How the work of streams is queued, done in order and waited for.
#include <algorithm>
#include <cstddef>
#include <iterator>
#include <set>
#include <utility>

#include "platform/hostdriver/capture.h"
#include "platform/hostdriver/memory_os.h"
#include "platform/hostdriver/stream.h"

namespace vmm::hostdriver {
namespace {

bool IsReached(const Stream::Point& point) {
  return point.stream->completed >= point.count;
}

// The streams of the context but its NULL stream, with those that were destroyed
// and are still at work.
std::vector<std::shared_ptr<Stream>> StreamsOf(const State& state,
                                               const Context& context) {
  std::vector<std::shared_ptr<Stream>> all;
  for (const auto& [id, stream] : state.streams) {
    if (stream->context.get() == &context) all.push_back(stream);
  }
  for (const auto& stream : state.draining) {
    if (stream->context.get() == &context) all.push_back(stream);
  }
  return all;
}

// What work submitted to `stream` now must wait for in other streams.
std::vector<Stream::Point> Predecessors(const State& state,
                                        const Stream& stream) {
  std::vector<Stream::Point> after;
  const auto add = [&after](const std::shared_ptr<Stream>& other) {
    if (!other->IsIdle()) after.push_back({other, other->submitted});
  };
  if (stream.is_default) {
    for (const auto& other : StreamsOf(state, *stream.context)) {
      if (other->blocking) add(other);
    }
  } else if (stream.blocking && stream.context->default_stream != nullptr) {
    add(stream.context->default_stream);
  }
  return after;
}

// Whether a wait for work that comes before some of the context must be given up.
bool MustAbandon(const State& state, const Context& context) {
  return state.stopping || context.destroyed;
}

// Of what work of the context came to, the first error stays.
void NoteResult(Context& context, CUresult result) {
  if (context.error == CUDA_SUCCESS) context.error = result;
}

// Whether earlier waits leave a queue to work of the stream with this number.
bool FindsQueue(const State& state, const Stream& stream, Queue queue,
                std::uint64_t number) {
  if (queue == Queue::kNone || queue == Queue::kWait) return true;
  const bool to_host =
      queue == Queue::kOfLast ? stream.to_host : queue == Queue::kToHost;
  const std::set<std::uint64_t>& waits = stream.context->waits[to_host];
  const auto queues = static_cast<std::size_t>(state.config.connections);
  return waits.size() < queues ||
         *std::next(waits.begin(), state.config.connections - 1) > number;
}

// Work that is the stream's next is in its queue from now on.
void BeginIn(Stream& stream, Stream::Operation& operation) {
  if (operation.queue == Queue::kShared || operation.queue == Queue::kToHost) {
    stream.to_host = operation.queue == Queue::kToHost;
  }
  if (operation.queue != Queue::kWait || operation.waits) return;
  operation.waits = true;
  stream.context->waits[stream.to_host].insert(operation.number);
}

void EndIn(Stream& stream, const Stream::Operation& operation) {
  if (operation.waits) {
    stream.context->waits[stream.to_host].erase(operation.number);
  }
}

void Run(const std::shared_ptr<Stream>& stream) {
  State& state = GetState();
  Lock lock(state.mu);
  for (;;) {
    state.progress.wait(lock, [&] {
      return !stream->queue.empty() || (stream->closed && !stream->runs_here) ||
             state.stopping;
    });
    if (state.stopping || stream->queue.empty()) break;
    Stream::Operation operation = std::move(stream->queue.front());
    stream->queue.pop_front();
    Context& context = *stream->context;
    state.progress.wait(lock, [&] {
      return MustAbandon(state, context) || AllReached(operation.after);
    });
    state.progress.wait(lock, [&] {
      return MustGiveUp(state, context) ||
             FindsQueue(state, *stream, operation.queue, operation.number);
    });
    if (state.config.delay.count() != 0) {
      state.progress.wait_until(lock, operation.not_before,
                                [&] { return MustAbandon(state, context); });
    }
    BeginIn(*stream, operation);
    const bool in_order =
        !MustAbandon(state, context) && context.error == CUDA_SUCCESS;
    if (in_order || operation.always) {
      NoteResult(context, operation.work(state, lock));
    }
    EndIn(*stream, operation);
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

CUresult SubmitOperation(State& state, const std::shared_ptr<Stream>& stream,
                         Work work, bool always, Queue queue,
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
       std::chrono::steady_clock::now() + state.config.delay, always, queue,
       ++stream->context->submitted});
  if (stream->IsIdle()) BeginIn(*stream, stream->queue.back());
  ++stream->submitted;
  state.progress.notify_all();
  return CUDA_SUCCESS;
}

}  // namespace

bool AllReached(const std::vector<Stream::Point>& points) {
  return std::all_of(points.begin(), points.end(), IsReached);
}

std::vector<Stream::Point> PointsBeforeNow(
    const State& state, const std::shared_ptr<Stream>& stream) {
  std::vector<Stream::Point> points = Predecessors(state, *stream);
  if (!stream->IsIdle()) points.push_back({stream, stream->submitted});
  return points;
}

std::vector<Stream::Point> PointsOf(const State& state,
                                    const std::shared_ptr<Stream>& stream) {
  std::vector<Stream::Point> points;
  if (stream->is_default) points = Predecessors(state, *stream);
  points.push_back({stream, stream->submitted});
  return points;
}

bool MustGiveUp(const State& state, const Context& context) {
  return MustAbandon(state, context) || context.error != CUDA_SUCCESS;
}

CUresult Submit(State& state, const std::shared_ptr<Stream>& stream, Work work,
                Queue queue) {
  return SubmitOperation(state, stream, std::move(work), /*always=*/false,
                         queue);
}

CUresult SubmitAlways(State& state, const std::shared_ptr<Stream>& stream,
                      Work work) {
  return SubmitOperation(state, stream, std::move(work), /*always=*/true,
                         Queue::kNone);
}

CUresult SubmitWait(State& state, const std::shared_ptr<Stream>& stream,
                    std::vector<Stream::Point> points) {
  return SubmitOperation(
      state, stream, [](State&, Lock&) { return CUDA_SUCCESS; },
      /*always=*/true, Queue::kNone, std::move(points));
}

CUresult RunAndWait(State& state, Lock& lock,
                    const std::shared_ptr<Stream>& stream, Work work,
                    Queue queue) {
  Context& context = *stream->context;
  if (stream->capture != nullptr) return AddToCapture(*stream, std::move(work));
  // With nothing to wait for, the caller's thread does as well as a worker's.
  if (stream->IsIdle() && Predecessors(state, *stream).empty() &&
      FindsQueue(state, *stream, queue, context.submitted + 1)) {
    ++stream->submitted;
    stream->runs_here = true;
    stream->to_host = queue == Queue::kToHost;
    const CUresult result = work(state, lock);
    NoteResult(context, result);
    stream->runs_here = false;
    if (!stream->IsIdle()) ++stream->completed;
    // Destroyed meanwhile, and no worker to see to it.
    if (stream->closed && !stream->has_worker) {
      std::erase(state.draining, stream);
    }
    state.progress.notify_all();
    return result;
  }
  RETURN_IF_FAILED(Submit(state, stream, std::move(work), queue));
  return WaitForStream(state, lock, stream);
}

CUresult WaitForStream(State& state, Lock& lock,
                       const std::shared_ptr<Stream>& stream) {
  const std::vector<Stream::Point> points = PointsOf(state, stream);
  state.progress.wait(lock,
                      [&] { return state.stopping || AllReached(points); });
  if (state.stopping) return CUDA_ERROR_DEINITIALIZED;
  if (stream->context->destroyed) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  return stream->context->error;
}

CUresult WaitForContext(State& state, Lock& lock,
                        const std::shared_ptr<Context>& context) {
  std::vector<std::shared_ptr<Stream>> all = StreamsOf(state, *context);
  if (context->default_stream != nullptr) {
    all.push_back(context->default_stream);
  }
  for (const std::shared_ptr<Stream>& stream : all) {
    RETURN_IF_FAILED(WaitForStream(state, lock, stream));
  }
  return context->error;
}

}  // namespace vmm::hostdriver
