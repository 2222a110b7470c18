#include "platform/hostdriver/event.h"

#include <utility>

#include "platform/hostdriver/capture.h"
#include "platform/hostdriver/context.h"
#include "platform/hostdriver/ipc_event.h"
#include "platform/hostdriver/pool.h"
#include "platform/hostdriver/stream.h"

namespace vmm::hostdriver {
namespace {

constexpr unsigned int kKnownFlags =
    CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;

void WaitUntilReached(State& state, Lock& lock, const Event& event,
                      std::uint64_t target,
                      const std::function<bool()>& give_up) {
  const auto done = [&] { return event.Reached(target) || give_up(); };
  if (event.file == nullptr) {
    state.progress.wait(lock, done);
  } else {
    PollUntil(state, lock, done);
  }
}

// What is recorded in a graph is never done. Measured: when the capture is over, or
// lost, the event is one that was never recorded anywhere.
CUresult RefuseIfRecordedInCapture(const Event& event) {
  if (event.capture == nullptr) return CUDA_SUCCESS;
  if (event.capture->over || event.capture->invalidated) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  event.capture->invalidated = true;
  return CUDA_ERROR_CAPTURED_EVENT;
}

// A wait in a graph, at each launch for what was recorded last by then.
CUresult WaitExternally(Stream& stream, const std::shared_ptr<Event>& event) {
  if (stream.capture == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  return AddToCapture(
      stream, [event, context = stream.context](State& now, Lock& held) {
        WaitUntilReached(now, held, *event, event->slot->recorded.load(),
                         [&] { return MustGiveUp(now, *context); });
        return CUDA_SUCCESS;
      });
}

// What a captured stream answers to a wait for what was recorded outside.
CUresult WaitInCapture(Capture& capture, const Event& event) {
  capture.invalidated = true;
  return event.file == nullptr ? CUDA_ERROR_STREAM_CAPTURE_ISOLATION
                               : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

}  // namespace

std::shared_ptr<Event> FindEvent(const State& state, const char* call,
                                 CUevent id) {
  return id == nullptr ? nullptr
                       : FindOrStop(state, call, "event", state.events, id);
}

bool Event::Reached(std::uint64_t target) const {
  if (slot->completed.load() >= target) return true;
  if (is_maker) return false;
  return slot->generation.load() != generation || !file->MakerLives();
}

Event::~Event() {
  if (file != nullptr && is_maker) ReleaseSlot(index);
}

}  // namespace vmm::hostdriver

using namespace vmm::hostdriver;

CUresult CUDAAPI cuEventCreate(CUevent* id, unsigned int flags) {
  RETURN_IF_FAILED(Enter("cuEventCreate"));
  State& state = GetState();
  const Lock lock(state.mu);
  std::shared_ptr<Context> context;
  RETURN_IF_FAILED(CurrentContext(state, &context));
  const bool shared = (flags & CU_EVENT_INTERPROCESS) != 0;
  if (id == nullptr || (flags & ~kKnownFlags) != 0 ||
      (shared && (flags & CU_EVENT_DISABLE_TIMING) == 0)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  auto event = std::make_shared<Event>();
  event->context = context;
  if (shared) {
    RETURN_IF_FAILED(TakeSlot(state, event.get()));
  }
  *id = reinterpret_cast<CUevent>(state.NewHandle());
  state.events[*id] = std::move(event);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuEventDestroy(CUevent id) {
  RETURN_IF_FAILED(Enter("cuEventDestroy"));
  State& state = GetState();
  const Lock lock(state.mu);
  if (FindEvent(state, "cuEventDestroy", id) == nullptr) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  state.events.erase(id);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuEventRecord(CUevent id, CUstream stream_id) {
  RETURN_IF_FAILED(Enter("cuEventRecord"));
  State& state = GetState();
  const Lock lock(state.mu);
  const std::shared_ptr<Event> event = FindEvent(state, "cuEventRecord", id);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  std::shared_ptr<Stream> stream;
  RETURN_IF_FAILED(FindStream(state, "cuEventRecord", stream_id, &stream));
  if (stream->context != event->context) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->capture != nullptr) {
    RETURN_IF_FAILED(RefuseIfLost(*stream));
    // Measured: the capture goes on.
    if (event->file != nullptr) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    event->capture = stream->capture;
    return CUDA_SUCCESS;
  }
  event->capture = nullptr;
  const std::uint64_t target = event->slot->recorded.fetch_add(1) + 1;
  const CUresult result =
      SubmitAlways(state, stream, [event, target](State&, Lock&) {
        std::atomic<std::uint64_t>& completed = event->slot->completed;
        std::uint64_t now = completed.load();
        while (now < target && !completed.compare_exchange_weak(now, target)) {
        }
        return CUDA_SUCCESS;
      });
  // What nobody will complete, nobody must wait for.
  if (result != CUDA_SUCCESS) event->slot->recorded.fetch_sub(1);
  return result;
}

CUresult CUDAAPI cuEventQuery(CUevent id) {
  RETURN_IF_FAILED(Enter("cuEventQuery"));
  State& state = GetState();
  const Lock lock(state.mu);
  const std::shared_ptr<Event> event = FindEvent(state, "cuEventQuery", id);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (event->context->error != CUDA_SUCCESS) return event->context->error;
  RETURN_IF_FAILED(RefuseIfRecordedInCapture(*event));
  return event->Reached(event->slot->recorded.load()) ? CUDA_SUCCESS
                                                      : CUDA_ERROR_NOT_READY;
}

CUresult CUDAAPI cuEventSynchronize(CUevent id) {
  RETURN_IF_FAILED(Enter("cuEventSynchronize"));
  State& state = GetState();
  Lock lock(state.mu);
  const std::shared_ptr<Event> event =
      FindEvent(state, "cuEventSynchronize", id);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  RETURN_IF_FAILED(RefuseIfRecordedInCapture(*event));
  WaitUntilReached(state, lock, *event, event->slot->recorded.load(),
                   [&] { return state.stopping || event->context->destroyed; });
  if (state.stopping) return CUDA_ERROR_DEINITIALIZED;
  ReleaseAtSynchronize(state);
  return event->context->error;
}

CUresult CUDAAPI cuStreamWaitEvent(CUstream stream_id, CUevent id,
                                   unsigned int flags) {
  RETURN_IF_FAILED(Enter("cuStreamWaitEvent"));
  State& state = GetState();
  const Lock lock(state.mu);
  const std::shared_ptr<Event> event =
      FindEvent(state, "cuStreamWaitEvent", id);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if ((flags & ~unsigned{CU_EVENT_WAIT_EXTERNAL}) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::shared_ptr<Stream> stream;
  RETURN_IF_FAILED(FindStream(state, "cuStreamWaitEvent", stream_id, &stream));
  RETURN_IF_FAILED(RefuseIfLost(*stream));
  if (flags != 0) return WaitExternally(*stream, event);
  if (event->capture != nullptr) {
    if (event->capture == stream->capture) return CUDA_SUCCESS;  // In order.
    // A second stream of a capture is not modelled.
    return event->capture->over || event->capture->invalidated
               ? CUDA_ERROR_INVALID_VALUE
               : CUDA_ERROR_NOT_SUPPORTED;
  }
  // The record that counts is the latest one at this moment.
  const std::uint64_t target = event->slot->recorded.load();
  if (stream->capture != nullptr && target != 0) {
    return WaitInCapture(*stream->capture, *event);
  }
  if (event->Reached(target)) return CUDA_SUCCESS;
  return Submit(
      state, stream,
      [event, target, context = stream->context](State& now, Lock& held) {
        WaitUntilReached(now, held, *event, target,
                         [&] { return MustGiveUp(now, *context); });
        return CUDA_SUCCESS;
      },
      Queue::kWait);
}
