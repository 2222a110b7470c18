// Stream capture: what is put on a stream goes into a graph, and is done when
// that is launched.
//
// Modelled: one stream a capture, the three modes and who may do what beside
// one, as cuda.h has it. A graph is its work in order.
#ifndef VMMSHARE_PLATFORM_HOSTDRIVER_CAPTURE_H_
#define VMMSHARE_PLATFORM_HOSTDRIVER_CAPTURE_H_

#include <thread>
#include <vector>

#include "platform/hostdriver/state.h"
#include "platform/hostdriver/stream.h"

namespace vmm::hostdriver {

struct Capture {
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::thread::id thread;  // Where it was begun.
  bool invalidated = false;
  bool over = false;
  std::vector<Work> work;
};

// What a call of the entry `name` is answered because of captures that are
// under way anywhere in the process: potentially unsafe calls are refused, and
// invalidate what they would have broken. Without the lock.
CUresult CheckBesideCaptures(const char* name);

// All of these REQUIRE that the lock is held.

// For a call that is potentially unsafe, of a thread that is not relaxed.
CUresult RefuseUnsafe(State& state);
// For a call that asks after, or waits for, what `stream` has done: a capture
// does not survive that.
CUresult RefuseIfCaptured(Stream& stream);
// For a call that asks for what does not change: only a capture that is lost is in
// its way.
CUresult RefuseIfLost(const Stream& stream);
// The same for a whole context.
CUresult RefuseIfCaptured(State& state, const Context& context);
// For work on the legacy stream, which has no place beside a capture of a
// blocking stream.
CUresult RefuseImplicit(State& state, const Context& context, bool invalidate);
// What becomes of work for a stream that is captured.
CUresult AddToCapture(Stream& stream, Work work);
// The stream ends.
void AbandonCapture(State& state, Stream& stream);

}  // namespace vmm::hostdriver

#endif  // VMMSHARE_PLATFORM_HOSTDRIVER_CAPTURE_H_
