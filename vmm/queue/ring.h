// A ring of buffers from one process to another: the producer fills a buffer on
// its stream, the consumer uses it on its own, and no host waits for a GPU.
//
//   // The producer; `channel` is connected to the consumer:
//   auto home = RingHome::Create(device);
//   auto ring = RingWriter::Open(**home, std::move(channel),
//                                {.buffers = 8, .bytes = 16 << 20}, deadline);
//   while (...) {
//     absl::StatusOr<RingBuffer> buffer = (*ring)->Acquire(stream, deadline);
//     fill<<<..., stream>>>(buffer->address);
//     absl::Status sent = (*ring)->Publish(*buffer, stream, deadline);
//   }
//   absl::Status done = (*ring)->Finish(deadline);
//
//   // The consumer:
//   auto ring = RingReader::Open(device, std::move(channel), {}, deadline);
//   for (;;) {
//     absl::StatusOr<RingBuffer> buffer = (*ring)->Acquire(stream, deadline);
//     if (absl::IsOutOfRange(buffer.status())) break;  // That was all.
//     use<<<..., stream>>>(buffer->address, buffer->size);
//     absl::Status freed = (*ring)->Release(*buffer, stream);
//   }
//
// Acquire() and Publish(), Acquire() and Release() are pairs: the first makes
// the stream wait until the buffer is free, or full; the second signals on the
// stream that it is full, or free. Publish() sends one message, in which are
// the buffer's ticket and the values of its two fences; nothing is sent back.
// So the host of either side runs ahead of its GPU: the consumer's as far as
// the producer's, and that two laps at most, for what it puts on the streams
// must not grow without end. There it waits, up to its deadline.
//
// A null stream is the current context's default stream. On a thread that has no
// context it is that of the primary one of the ring's device, which is then held
// as long as the home, or the reader.
//
// When the peer has ended, calls return UNAVAILABLE. Streams of this process
// that wait for it are let go once nobody has its GPU context any more, a process
// that it forked included: until then the buffers are in use. LetGo() does not
// wait for that. A thread of each side looks for it ten times a second, so that a
// host that stands in cuStreamSynchronize() goes on, too. Whether the contents
// were there Await() or Finish() says then. docs/ordering.md has the rules.
#ifndef VMMSHARE_VMM_QUEUE_RING_H_
#define VMMSHARE_VMM_QUEUE_RING_H_

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "platform/ipc/channel.h"
#include "platform/os/deadline.h"
#include "platform/os/process.h"
#include "vmm/memory/device.h"
#include "vmm/pool/pool.h"
#include "vmm/share/endpoint.h"
#include "vmm/sync/fence_pool.h"

namespace vmm {

class SpareContext;

inline constexpr std::uint32_t kMaxRingBuffers = 64;

struct RingHomeOptions {
  PoolOptions pool = {};  // Of the buffers; `also` for peers' devices.
  FencePoolOptions fences = {};
  EndpointOptions endpoint = {};
};

// Where the buffers and fences of a process's rings are, and the endpoint that
// serves them. One for many rings whose readers may see each other's buffers: a
// reader is given the handles of all of them.
//
// Thread-safe. In a forked child it does nothing when destroyed.
class RingHome {
 public:
  // Errors as Pool::Create(), FencePool::Create() and Endpoint::Start().
  static absl::StatusOr<std::unique_ptr<RingHome>> Create(
      const Device& device, const RingHomeOptions& options = {});
  // REQUIRES: its writers have gone, and the GPU has passed what they put on
  // streams.
  ~RingHome();
  RingHome(const RingHome&) = delete;
  RingHome& operator=(const RingHome&) = delete;

  Pool& pool() { return *pool_; }
  FencePool& fences() { return *fences_; }
  const std::string& pool_ticket() const { return pool_served_.ticket(); }
  const std::string& fences_ticket() const { return fences_served_.ticket(); }

 private:
  friend class RingWriter;
  RingHome(std::unique_ptr<SpareContext> spare, std::unique_ptr<Pool> pool,
           std::unique_ptr<FencePool> fences,
           std::unique_ptr<Endpoint> endpoint, Share pool_served,
           Share fences_served);

  std::unique_ptr<SpareContext> spare_;  // Goes after what was used in it.
  std::unique_ptr<Pool> pool_;
  std::unique_ptr<FencePool> fences_;
  std::unique_ptr<Endpoint> endpoint_;
  Share pool_served_;
  Share fences_served_;
  const platform::MadeHere made_;
  std::atomic<std::uint64_t> writers_ = 0;
};

struct RingOptions {
  std::uint32_t buffers = 8;  // 1 to kMaxRingBuffers.
  std::uint64_t bytes = 0;    // Of each buffer.
  // How long the destructor waits for the reader, and where it lets go, for
  // this GPU after that: twice as long in all.
  absl::Duration patience = absl::Seconds(10);
};

// A buffer that is acquired. A value: it owns nothing.
struct RingBuffer {
  CUdeviceptr address = 0;
  // The writer: bytes there are, and it may say fewer before it publishes. The
  // reader: bytes that the writer said.
  std::uint64_t size = 0;
  std::uint64_t tag = 0;     // The writer's, for the reader.
  std::uint64_t number = 0;  // Of the item: from 1.
};

// The producer's side. Thread-compatible; any number of streams, all of one
// context. In a forked child it does nothing when destroyed, and nothing else
// may be called there.
class RingWriter {
 public:
  // Takes the buffers and fences from `home`, sends the reader what it needs,
  // and returns when it has joined. The channel is the ring's from now on.
  //   INVALID_ARGUMENT   a number of buffers or bytes that makes no sense
  //   DEADLINE_EXCEEDED, UNAVAILABLE  the reader did not join, or the buffers
  //                      took longer
  //   DATA_LOSS          the reader answered something else
  //   else               as Pool::Allocate(), FencePool::New(), or what the
  //                      reader answered ("the reader refused:")
  static absl::StatusOr<std::unique_ptr<RingWriter>> Open(
      RingHome& home, platform::Channel channel, const RingOptions& options,
      Deadline deadline);

  // Waits until the reader has given back what was published, and hangs up.
  // After Finish() there is nothing to wait for. After `patience`, or once the
  // reader's end is proven, it lets go. A buffer that this GPU has not passed
  // even then, or that is acquired and not published, is kept until the home
  // goes.
  ~RingWriter();
  RingWriter(const RingWriter&) = delete;
  RingWriter& operator=(const RingWriter&) = delete;

  // The next buffer, for work that is put on `stream` after this call.
  //   INVALID_ARGUMENT     CU_STREAM_PER_THREAD (its value is another stream on
  //                        each thread)
  //   FAILED_PRECONDITION  the next one is acquired and not published yet; the
  //                        ring is finished; `stream` is captured into a graph
  //   DEADLINE_EXCEEDED    the reader is two laps behind; it may be tried again
  //   UNAVAILABLE          the reader hung up or has ended; for good. Says
  //                        whether streams were let go
  //   ABORTED              LetGo() was called, here or there, or the reader's
  //                        destructor waited no longer; or an item could not be
  //                        sent
  //   DATA_LOSS            the reader wrote nonsense to a fence
  //   else                 as the driver reports
  // After an error nothing is acquired.
  absl::StatusOr<RingBuffer> Acquire(CUstream stream, Deadline deadline);

  // Hands over what is put on `stream` before: `buffer.size` bytes, with
  // `buffer.tag`. Buffers may be published in any order.
  //   INVALID_ARGUMENT     a size above the buffer's; CU_STREAM_PER_THREAD
  //   FAILED_PRECONDITION  the buffer is not acquired (published already, or of
  //                        another ring); `stream` is captured into a graph
  //   UNAVAILABLE, DEADLINE_EXCEEDED  the reader hung up or does not read: the
  //                        ring has ended
  //   ABORTED, DATA_LOSS   as Acquire()
  //   else                 as the driver reports: it is still acquired
  // When the ring has ended the buffer is given back in the stream's order, so
  // publish also then what was acquired.
  absl::Status Publish(const RingBuffer& buffer, CUstream stream,
                       Deadline deadline);

  // Says that no more come, and returns when the reader's GPU has passed all.
  // Errors as Acquire(). The first call sends; it may be called again.
  absl::Status Finish(Deadline deadline);

  // Ends the ring on both sides. Streams that wait in it are let go now, those
  // of a writer that wait for what the reader has not acquired some 100 ms later:
  // what they do after that they do with whatever is in the buffers.
  // The peer's calls return ABORTED, also one that waits; UNAVAILABLE where so
  // much is unread that word of it does not fit.
  void LetGo();

 private:
  class State;
  explicit RingWriter(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

struct RingReaderOptions {
  Access access = Access::kRead;  // To the buffers.
  // For the CPU too, if they are on the host.
  Access host_access = Access::kNone;
  platform::PeerPolicy owners = {};
  // As in RingOptions.
  absl::Duration patience = absl::Seconds(10);
};

// The consumer's side. As RingWriter.
class RingReader {
 public:
  // Receives what the writer sends, and subscribes to its pools; `device` is
  // that whose streams use the buffers. Errors as ImportedPool::Subscribe();
  // UNAVAILABLE also when the writer could not make its buffers; DATA_LOSS when
  // something else came. The writer is told the error.
  static absl::StatusOr<std::unique_ptr<RingReader>> Open(
      const Device& device, platform::Channel channel,
      const RingReaderOptions& options, Deadline deadline);

  // Waits until the GPU has passed what was released, and hangs up. After
  // `patience`, or once the writer's end is proven, it lets go of streams that
  // wait for contents; memory that the GPU has not passed even then stays imported
  // until this process ends. What is acquired and not released is given back in
  // the order of no stream: synchronise first.
  ~RingReader();
  RingReader(const RingReader&) = delete;
  RingReader& operator=(const RingReader&) = delete;

  // The next item. Work that is put on `stream` after this call sees what was
  // on the writer's stream when it was published.
  //   INVALID_ARGUMENT   CU_STREAM_PER_THREAD
  //   FAILED_PRECONDITION  it is in a buffer that is acquired and not released
  //                      yet, or `stream` is captured into a graph; it comes when
  //                      called after that
  //   OUT_OF_RANGE       there are no more: the writer has finished
  //   DEADLINE_EXCEEDED  none came; may be tried again
  //   UNAVAILABLE        the writer hung up or has ended. Items that it
  //                      published before come first, up to one whose contents
  //                      never will
  //   ABORTED            LetGo() was called, here or there
  //   DATA_LOSS          the writer sent something that is no item of this ring
  //   else               as ImportedPool::Import(), or the driver
  absl::StatusOr<RingBuffer> Acquire(CUstream stream, Deadline deadline);

  // Gives a buffer back once the work that is on `stream` now is done.
  // FAILED_PRECONDITION when it is not acquired (released already);
  // INVALID_ARGUMENT for CU_STREAM_PER_THREAD; else as the driver answers, or
  // FAILED_PRECONDITION while `stream` is captured: it is still acquired.
  absl::Status Release(const RingBuffer& buffer, CUstream stream);

  // Waits on this thread until the contents of `buffer` are there. ABORTED or
  // UNAVAILABLE: they never will be, although streams have been let go; what
  // they computed from them is worth nothing. FAILED_PRECONDITION when it is
  // not acquired.
  absl::Status Await(const RingBuffer& buffer, Deadline deadline);

  // Returns when the GPU has passed what was released. The ring goes on; if nothing
  // is acquired after that, it and its memory can go without a wait. OK means as
  // well that all the contents were there. DEADLINE_EXCEEDED; FAILED_PRECONDITION
  // while a buffer is acquired; ABORTED or UNAVAILABLE as Await().
  absl::Status Finish(Deadline deadline);

  // As RingWriter::LetGo().
  void LetGo();

 private:
  class State;
  explicit RingReader(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace vmm

#endif  // VMMSHARE_VMM_QUEUE_RING_H_
