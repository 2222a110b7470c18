// Streams: queues of work, each with a thread that does it in order.
//
// A context has fewer hardware queues than streams. As many waits as there are stop
// the context's work that is submitted later, but host functions and records of
// events: a queue is in order, and nothing stands behind a later wait. Copies to the
// host have as many queues of their own, in which a stream's values and waits are,
// too, when its last other work was one. Measured: which work fewer waits stop is the
// driver's choice, and here none.
//
// A context's NULL stream is a stream like others, whose work begins after all
// earlier work of the context's blocking streams, and before which their later
// work does not begin.
#ifndef VMMSHARE_PLATFORM_HOSTDRIVER_STREAM_H_
#define VMMSHARE_PLATFORM_HOSTDRIVER_STREAM_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "platform/hostdriver/state.h"

namespace vmm::hostdriver {

// Which hardware queue work is in.
enum class Queue {
  kShared,
  kToHost,  // Copies to the host.
  kOfLast,  // The stream's last work was in.
  kWait,    // The same, which it keeps until it has been done.
  kNone,
};

struct Stream {
  struct Point {  // In a stream: after its first `count` operations.
    std::shared_ptr<Stream> stream;
    std::uint64_t count;
  };
  struct Operation {
    Work work;
    std::vector<Point> after;
    std::chrono::steady_clock::time_point not_before;
    bool always = false;  // Even when the context failed or ends.
    Queue queue = Queue::kShared;
    std::uint64_t number = 0;  // Of those of the context.
    bool waits = false;        // In its queue, since it is the stream's next.
  };

  std::shared_ptr<Context> context;
  int priority = 0;         // Of no effect.
  bool blocking = true;     // Orders itself with the NULL stream.
  bool is_default = false;  // Is the NULL stream.
  bool closed = false;      // Destroyed: ends when the queue is empty.
  bool has_worker = false;
  std::deque<Operation> queue;
  std::uint64_t submitted = 0;
  std::uint64_t completed = 0;
  bool runs_here = false;  // Its last operation, on a caller's thread.
  bool to_host = false;    // Its last work was in such a queue.
  std::shared_ptr<Capture> capture;  // While it is captured.

  bool IsIdle() const { return completed == submitted; }
};

// All of these REQUIRE that the lock is held.

// The stream `id` stands for, in the calling thread's context if it is NULL.
// Stops on a stream that was destroyed or never made.
CUresult LookUpStream(State& state, const char* call, CUstream id,
                      std::shared_ptr<Stream>* stream);
// The same for work: the NULL stream has none beside the capture of a blocking
// one, and invalidates that.
CUresult FindStream(State& state, const char* call, CUstream id,
                    std::shared_ptr<Stream>* stream);

// Queues `work`. OUT_OF_MEMORY when no thread can be had.
CUresult Submit(State& state, const std::shared_ptr<Stream>& stream, Work work,
                Queue queue = Queue::kShared);

// The same for work that does not touch memory and must not be left out, even
// when the context failed or ends: others may wait for its effect.
CUresult SubmitAlways(State& state, const std::shared_ptr<Stream>& stream,
                      Work work);

// All that was submitted before now and would come before new work of the
// stream; empty when all of that is done.
std::vector<Stream::Point> PointsBeforeNow(
    const State& state, const std::shared_ptr<Stream>& stream);
// What a wait for the stream waits for: all its work; for the NULL stream, which
// stands for the context's blocking streams too, also theirs.
std::vector<Stream::Point> PointsOf(const State& state,
                                    const std::shared_ptr<Stream>& stream);
// Whether all of it is done.
bool AllReached(const std::vector<Stream::Point>& points);
// Lets all later work of `stream` wait for `points`.
CUresult SubmitWait(State& state, const std::shared_ptr<Stream>& stream,
                    std::vector<Stream::Point> points);

// Does `work` in the stream's turn and returns when it is done.
CUresult RunAndWait(State& state, Lock& lock,
                    const std::shared_ptr<Stream>& stream, Work work,
                    Queue queue = Queue::kShared);

// Waits for all work of the stream, or of the context. Answers the context's
// sticky error.
CUresult WaitForStream(State& state, Lock& lock,
                       const std::shared_ptr<Stream>& stream);
CUresult WaitForContext(State& state, Lock& lock,
                        const std::shared_ptr<Context>& context);

// Whether work of the context that itself waits, for a value or for an event, must
// do so no more: a fault ends all that the context does. Measured.
bool MustGiveUp(const State& state, const Context& context);

// Closes all streams of a context that ends. The caller tells who waits.
void AbandonStreams(State& state, Context& context);

}  // namespace vmm::hostdriver

#endif  // VMMSHARE_PLATFORM_HOSTDRIVER_STREAM_H_
