// A ring of buffers from one process to another: the producer fills a buffer on
// its stream, the consumer uses it on its own, and no host waits for a GPU.
// docs/ordering.md has the rules.
//
// A ring is for one thread at a time. `stream`, a CUstream, may be NULL: the
// current context's default stream, on a thread that has no context that of the
// primary one of the ring's device.
#ifndef VMMSHARE_VMM_C_RING_H_
#define VMMSHARE_VMM_C_RING_H_

#include <stdint.h>

#include "vmm/c/base.h"
#include "vmm/c/driver.h"
#include "vmm/c/pool.h"
#include "vmm/c/share.h"

#ifdef __cplusplus
extern "C" {
#endif

// Where the buffers of a process's rings are. One for many rings whose readers
// may see each other's buffers.
typedef struct vmmshare_ring_home vmmshare_ring_home;
// `options`, of the pool of the buffers, may be NULL. UNIMPLEMENTED where the
// device has no stream memory operations.
VMMSHARE_API vmmshare_status vmmshare_ring_home_create(
    const vmmshare_device* device, const vmmshare_pool_options* options,
    vmmshare_ring_home** home, vmmshare_error** error);
VMMSHARE_API void vmmshare_ring_home_close(vmmshare_ring_home* home);

// One end of a ring: the writer's or the reader's.
typedef struct vmmshare_ring vmmshare_ring;
// Both take the connection over, also after a failure; the channel is then only
// to be closed. They return when the other end has joined, which waits for this
// one meanwhile.
VMMSHARE_API vmmshare_status
vmmshare_ring_open_writer(vmmshare_ring_home* home, vmmshare_channel* channel,
                          uint32_t buffers, uint64_t bytes, int64_t timeout_ns,
                          vmmshare_ring** ring, vmmshare_error** error);
// `writable`: 1 maps the buffers for writing too. CPUs reach those on the host.
// `device` is that whose streams use them.
VMMSHARE_API vmmshare_status vmmshare_ring_open_reader(
    const vmmshare_device* device, vmmshare_channel* channel, int32_t writable,
    int64_t timeout_ns, vmmshare_ring** ring, vmmshare_error** error);
// Waits 10 s at most for the peer, lets go, and then 10 s at most for this GPU.
VMMSHARE_API void vmmshare_ring_close(vmmshare_ring* ring);

typedef struct vmmshare_ring_buffer {
  uint64_t struct_size;
  uint64_t address;
  uint64_t size;    // Bytes; the writer may say fewer before it publishes.
  uint64_t tag;     // The writer's, for the reader.
  uint64_t number;  // Of the item: from 1.
} vmmshare_ring_buffer;

// The next buffer, for work that comes on `stream` later. For the reader that
// sees what the writer's stream did before it published.
//   INVALID_ARGUMENT   CU_STREAM_PER_THREAD
//   FAILED_PRECONDITION  it is acquired, and vmmshare_ring_pass() was not called
//                      for it yet, or `stream` is captured into a graph: may be
//                      tried again after that; or this is a writer that has
//                      finished
//   OUT_OF_RANGE       the writer has finished, and there are no more
//   DEADLINE_EXCEEDED  may be tried again
//   UNAVAILABLE        the other end hung up or has ended
//   ABORTED            vmmshare_ring_abort(), here or there, or the other end was
//                      closed and waited no longer; or the writer could not send an
//                      item
//   DATA_LOSS          the other end sent or wrote what has no place: the ring has
//                      ended
VMMSHARE_API vmmshare_status vmmshare_ring_acquire(vmmshare_ring* ring,
                                                   void* stream,
                                                   int64_t timeout_ns,
                                                   vmmshare_ring_buffer* buffer,
                                                   vmmshare_error** error);
// The writer hands over what is on `stream` now; the reader gives the buffer
// back after that, and never waits.
//   FAILED_PRECONDITION  it is not acquired; or `stream` is captured into a graph: it
//                        is still acquired
//   INVALID_ARGUMENT     CU_STREAM_PER_THREAD; more bytes than a buffer has
//   UNAVAILABLE, ABORTED, DATA_LOSS  of the writer: as vmmshare_ring_acquire()
//   DEADLINE_EXCEEDED    of the writer: the reader does not read what it is sent, and
//                        the ring has ended
VMMSHARE_API vmmshare_status
vmmshare_ring_pass(vmmshare_ring* ring, const vmmshare_ring_buffer* buffer,
                   void* stream, int64_t timeout_ns, vmmshare_error** error);
// The reader waits on this thread until the contents are there. Of a writer's
// ring: FAILED_PRECONDITION.
VMMSHARE_API vmmshare_status
vmmshare_ring_await(vmmshare_ring* ring, const vmmshare_ring_buffer* buffer,
                    int64_t timeout_ns, vmmshare_error** error);
// The writer says that no more come. Returns when the GPU has passed all.
VMMSHARE_API vmmshare_status vmmshare_ring_finish(vmmshare_ring* ring,
                                                  int64_t timeout_ns,
                                                  vmmshare_error** error);
// Lets all streams go that wait in the ring, on both ends; it has ended then.
VMMSHARE_API vmmshare_status vmmshare_ring_abort(vmmshare_ring* ring,
                                                 vmmshare_error** error);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // VMMSHARE_VMM_C_RING_H_
