// Fence: a counter in shared memory that GPUs and CPUs of several processes
// signal and wait for.
//
//   FencePool (fence_pool.h) makes them; a ticket brings them to a peer.
//   FenceArray (fence_array.h) has them in device memory that processes share
//   already, also between nodes of an NVLink fabric.
//
//   // The producer's stream:
//   copy_or_kernel<<<..., stream>>>(buffer);
//   absl::Status sent = fence.Signal(stream, ++frame);
//   // The consumer's stream, in another process, on any GPU:
//   absl::Status ordered = fence.Wait(stream, frame);
//   consume<<<..., stream>>>(buffer);      // sees what the producer wrote
//
// Signal() and Wait() put work on the stream and return: no host waits, no
// message is sent. docs/ordering.md says which writes are visible to whom.
//
// A fence's value begins at 0 and only grows. Somebody who waits for v is let
// go by any value from v on, so a signal that nobody waits for costs nothing.
//
// A stream that waits for a value that never comes would stand still for ever:
// CUDA has no deadline there. Abandon() lets go of it, from any process that
// has the fence, also when the one that was to signal has died. The stream goes
// on then, without the data; whoever looks at the fence learns it (ABORTED).
#ifndef VMMSHARE_VMM_SYNC_FENCE_H_
#define VMMSHARE_VMM_SYNC_FENCE_H_

#include <cuda.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "platform/os/deadline.h"
#include "platform/os/process.h"
#include "vmm/pool/imported_pool.h"

namespace vmm {

namespace fence {
class Memory;
class Source;
struct Progress;
}  // namespace fence

// The largest value that a fence can be signalled. A counter that grows by one
// every microsecond reaches it after nine years.
inline constexpr std::uint64_t kMaxFenceValue = (std::uint64_t{1} << 48) - 1;

// By what a stream signals and waits.
enum class FenceMechanism {
  // cuStreamWriteValue64 and cuStreamWaitValue64.
  kStreamMemoryOperations,
  // A wait is a kernel of one thread, which asks all the time: half as long (two
  // H200: docs/benchmarks.md), while it takes a place on the GPU. FenceArray alone.
  kKernels,
};

// Where its value lives.
enum class FencePlace {
  // Every CPU and GPU of the machine looks at it. From FencePool.
  kHostMemory,
  // GPUs look at it, of other nodes too; the host asks its GPU, which takes
  // 14 us (measured on H200) and not the fraction of one. From FenceArray.
  kDeviceMemory,
};

// What ends a wait on the host before its value or its deadline comes.
struct FenceWatch {
  // The process that is to signal, whose end ends the wait. See
  // Channel::OpenPeer(). Null: none. Kept by the caller. What it has put on
  // streams may be signalled later all the same, if a process that it forked
  // has its GPU context: before memory is used again ask platform::PeerWatch.
  const platform::Process* signaller = nullptr;
  // Asked about once a millisecond, on the waiting thread; an error ends the
  // wait, and so does what it throws. For example
  // [&] { return imported_fences->connection(); }, or a flag by which another thread
  // cancels. Empty: none.
  std::function<absl::Status()> still_worth = nullptr;
};

// One fence, or a process's share in it. Move-only. Thread-safe, but that one thread
// at a time may move it, Release() it, or signal it: by Signal(), SignalFromHost(), or
// as one of the `signals` of Meet().
//
// May be destroyed at any time: work that it put on streams needs it no more. Its
// memory is used again once the highest value that it put on a stream is there. So
// order with each other the streams that signal one fence: a lower value that comes
// later would come into the next one.
//
// In a forked child every call returns FAILED_PRECONDITION.
//
// In device memory Signal() and Wait(), which ask nobody, know of the fence
// what this process was told last. So a value that went backwards elsewhere,
// and ABORTED, may be noticed by the next Query() only. The other calls fail as
// the driver does too, or with DEADLINE_EXCEEDED when the GPU has not said what
// is in its memory after 10 s, or 20 ms after a deadline that has passed.
class Fence {
 public:
  Fence(Fence&& other) noexcept = default;
  Fence& operator=(Fence&& other) noexcept;
  ~Fence();

  // Signals `value` once all work that is on `stream` now is done and its
  // writes are visible to every GPU and CPU. Null is the current context's
  // default stream; on a thread without a context that of the primary one of the
  // fence pool's device, where that is one, which the pool's fences hold from then
  // on. REQUIRES: the stream is of a device that the fence's pool
  // was given, in this process.
  //   INVALID_ARGUMENT     0, above kMaxFenceValue, or what the driver says
  //                        of the stream
  //   FAILED_PRECONDITION  not above the fence's value now, or the last one
  //                        that this object put on the same stream; the fence
  //                        was given back
  //   ABORTED              the fence is abandoned
  //   DATA_LOSS            a peer wrote something that is no value of it
  // After an error nothing was put on the stream.
  //
  // Several streams, hosts and processes may signal one fence by turns: they
  // order each other by waiting for it. Of two that do not, the smaller value
  // may come last, and until the next one the fence then says less than it
  // did; nobody can know that beforehand. Not for a stream that is being
  // captured: the graph would signal the same value again.
  absl::Status Signal(CUstream stream, std::uint64_t value);

  // Raises the value by `value` once all work that is on `stream` now is done, and
  // as visibly as Signal(): for several that signal one fence and have no order
  // between them, each of which adds its part. Of a FenceArray whose streams wait by
  // kernels. A fence that is added to is not signalled otherwise.
  //   INVALID_ARGUMENT     0, or more than kMaxFenceValue in all as far as is known
  //   FAILED_PRECONDITION  mechanism() is another; the fence was given back
  //   ABORTED, DATA_LOSS   as Signal()
  // REQUIRES: the stream's device may do atomic operations in the fence's memory:
  // its own, or over NVLink (CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED).
  absl::Status Add(CUstream stream, std::uint64_t value);

  // Makes work that is put on `stream` after this call wait until the fence has
  // reached `value`, or is abandoned. For 0 there is nothing to wait for.
  // Errors as Signal(), but that the value may be any up to kMaxFenceValue;
  // ABORTED only if it was not reached before.
  //
  // The GPU's queues are fewer than streams: as many streams that wait at a time as
  // CUDA_DEVICE_MAX_CONNECTIONS says, 8 without it, stop the others of the process
  // (measured; not where waits are kernels). See docs/ordering.md.
  absl::Status Wait(CUstream stream, std::uint64_t value);

  // Signals `value` to each of `signals`, then waits for it from each of `waits`:
  // Signal() and Wait() of all of them, in that order. A barrier of streams: see
  // FenceArray. One kernel where all of `waits` use kernels, and of 127 fences at
  // most; else as many operations as there are fences. Errors as Signal() and
  // Wait(): after one of their own nothing was put on the stream, after one that
  // the driver reports some may have been. REQUIRES: as Signal().
  static absl::Status Meet(CUstream stream, absl::Span<Fence* const> signals,
                           absl::Span<Fence* const> waits, std::uint64_t value);

  // Signals `value` now, from the CPU: what this thread wrote before, and what
  // it knows to be written, is visible to whoever waits. Errors as Signal();
  // FAILED_PRECONDITION also while this object's signal of a value up to that
  // is on its way on a stream, for it would come later and be smaller.
  absl::Status SignalFromHost(std::uint64_t value);

  // Waits on this thread until the fence has reached `value`: looks at it
  // again and again, at first all the time, later every millisecond.
  //   DEADLINE_EXCEEDED  it has not by `deadline`
  //   UNAVAILABLE        `watch.signaller` has ended without it
  //   ABORTED            the fence was abandoned before
  //   INVALID_ARGUMENT, FAILED_PRECONDITION, DATA_LOSS  as Signal()
  //   else               what `watch.still_worth` returned
  // A value that is reached by then is OK, whatever else is the case. Streams
  // that wait are not let go by any of this: see Abandon().
  absl::Status WaitOnHost(std::uint64_t value, Deadline deadline,
                          const FenceWatch& watch = {});

  // The value now. ABORTED when the fence is abandoned: the message has the
  // last value. Does not wait for anybody.
  absl::StatusOr<std::uint64_t> Query() const;

  // Ends the fence for everybody: lets go of all streams and threads that wait
  // for it, and has later waits and signals refused (ABORTED), but for waits
  // for values that it had reached. OK also when it is abandoned already.
  //
  // A signal that is on a stream when the fence is abandoned is made all the
  // same, and counts; from then until somebody looks at the fence by any call
  // of this class but Signal() and Wait() in device memory, a stream can wait
  // for it again. So abandon a fence after its signaller's end is proven
  // (platform::PeerWatch), or call Query() once its stream has passed.
  absl::Status Abandon();

  // Gives the fence back, as the destructor does. FAILED_PRECONDITION when it
  // was given back, or moved from, before.
  absl::Status Release();

  // Both REQUIRE: it was not given back.
  FenceMechanism mechanism() const;
  FencePlace place() const;

 private:
  friend class FencePool;
  friend class ImportedFencePool;
  friend class FenceArray;
  Fence(std::shared_ptr<fence::Source> source, CUdeviceptr at,
        std::uint64_t base, std::optional<ImportedBlock> block)
      : source_(std::move(source)),
        at_(at),
        base_(base),
        block_(std::move(block)) {}

  absl::Status CheckUsable() const;
  absl::Status CheckValue(std::uint64_t value) const;
  // ABORTED and DATA_LOSS of a fence that is at `now`; OK for a `value` that it
  // had reached before it was abandoned.
  static absl::Status CheckGoesOn(const fence::Progress& now);
  static absl::Status CheckMayReach(std::uint64_t value,
                                    const fence::Progress& now);
  // Whether `value` may be signalled.
  absl::Status CheckSignal(std::uint64_t value) const;
  // The same for a fence that is at `now`, and after `last`, with the base.
  absl::Status CheckForwards(std::uint64_t value, const fence::Progress& now,
                             std::uint64_t last) const;
  // What Signal() and Wait() ask before they put anything on the stream.
  absl::Status CheckMaySignal(CUstream stream, std::uint64_t value) const;
  absl::Status CheckMayWait(std::uint64_t value) const;
  absl::Status PutSignal(CUstream stream, std::uint64_t value);
  absl::Status PutWait(CUstream stream, std::uint64_t value) const;
  void NoteSignal(CUstream stream, std::uint64_t value);
  fence::Memory& memory() const;

  std::shared_ptr<fence::Source> source_;  // Null: given back, or moved from.
  CUdeviceptr at_;
  std::uint64_t base_;
  // The highest value that this object has put on a stream, with the base.
  std::uint64_t enqueued_ = 0;
  // The last that it put on a stream, and on which. That may be gone since.
  CUstream last_stream_ = nullptr;
  std::uint64_t last_ = 0;
  std::optional<ImportedBlock> block_;  // Of a peer's fence.
};

}  // namespace vmm

#endif  // VMMSHARE_VMM_SYNC_FENCE_H_
