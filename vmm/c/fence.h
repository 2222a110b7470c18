// Counters in shared memory that GPUs and CPUs of several processes signal and
// wait for. docs/ordering.md has the rules.
//
// `stream`, a CUstream, may be NULL: the current context's default stream. On a
// thread that has no context it is that of the primary one of the device that a
// fence pool was made, or opened, with.
#ifndef VMMSHARE_VMM_C_FENCE_H_
#define VMMSHARE_VMM_C_FENCE_H_

#include <stdint.h>

#include "vmm/c/base.h"
#include "vmm/c/driver.h"
#include "vmm/c/share.h"

#ifdef __cplusplus
extern "C" {
#endif

// Where fences come from: this process's own, or another's.
typedef struct vmmshare_fence_pool vmmshare_fence_pool;
// UNIMPLEMENTED where the device has no stream memory operations.
VMMSHARE_API vmmshare_status
vmmshare_fence_pool_create(const vmmshare_device* device,
                           vmmshare_fence_pool** pool, vmmshare_error** error);
// `text` is that of a share; `device` is whose streams use the fences here.
VMMSHARE_API vmmshare_status vmmshare_fence_pool_open(
    const vmmshare_device* device, const char* text, int64_t timeout_ns,
    vmmshare_fence_pool** pool, vmmshare_error** error);
// Its fences stay. REQUIRES: when it and they are closed, the GPU has passed the
// waits and signals that this process put on streams: their memory is unmapped.
VMMSHARE_API void vmmshare_fence_pool_close(vmmshare_fence_pool* pool);
// OK while its owner is there, as this process is for its own; UNAVAILABLE once
// that has ended, or has closed the pool and all of its fences. Fences that are
// open go on working.
VMMSHARE_API vmmshare_status vmmshare_fence_pool_connection(
    const vmmshare_fence_pool* pool, vmmshare_error** error);
// Of this process's own pool; else FAILED_PRECONDITION.
VMMSHARE_API vmmshare_status
vmmshare_server_share_fences(vmmshare_server* server, vmmshare_fence_pool* pool,
                             vmmshare_share** share, vmmshare_error** error);

// For one thread at a time where a call says so.
typedef struct vmmshare_fence vmmshare_fence;

// Fences in device memory that processes share already, as ranks of a job do:
// fence i is the same one for all that have the memory, and needs no ticket.
// Prefer fence pools on one machine, where the host looks without asking a GPU.
typedef struct vmmshare_fence_array vmmshare_fence_array;
#define VMMSHARE_FENCE_BYTES 256
// Over `bytes` at `memory`, VMMSHARE_FENCE_BYTES for each, whose streams are
// those of `device`; changes nothing there. Make it before streams wait: the
// driver may not make a stream, which this takes, while many do.
//   INVALID_ARGUMENT     `memory` or `bytes` is no multiple of
//                        VMMSHARE_FENCE_BYTES, or none
//   FAILED_PRECONDITION  `device` may not write to the first byte or the last, or
//                        nothing is mapped there, or it is no memory of
//                        cuMemCreate()
//   UNIMPLEMENTED        the device has no stream memory operations
// All the memory stays mapped so, until the array and its fences are closed and the
// GPU has passed their waits and signals.
VMMSHARE_API vmmshare_status vmmshare_fence_array_create(
    const vmmshare_device* device, uint64_t memory, uint64_t bytes,
    vmmshare_fence_array** array, vmmshare_error** error);
// The same, of which streams wait by a kernel of one thread in place of an
// operation of theirs: half as long, while it takes a place on the GPU. Streams
// must be of the device's primary context, and who signals must have a GPU of its
// own: two processes on one take turns, and a wait keeps its turn. UNIMPLEMENTED
// also where the driver has no kernels for it (before CUDA 12.0, before Volta);
// DEADLINE_EXCEEDED where the GPU did not run one within 10 s.
VMMSHARE_API vmmshare_status vmmshare_fence_array_create_with_kernels(
    const vmmshare_device* device, uint64_t memory, uint64_t bytes,
    vmmshare_fence_array** array, vmmshare_error** error);
// Its fences may outlive it.
VMMSHARE_API void vmmshare_fence_array_close(vmmshare_fence_array* array);
// Fences; 0 for NULL.
VMMSHARE_API uint64_t
vmmshare_fence_array_size(const vmmshare_fence_array* array);
// Makes all of them new, of value 0: one process does, before any uses them. It is a
// fill, which stands while as many streams of the process wait as there are hardware
// queues (docs/ordering.md). DEADLINE_EXCEEDED: the zeros may come yet, and until they
// have the memory must stay mapped. Call it again to wait for them.
VMMSHARE_API vmmshare_status vmmshare_fence_array_clear(
    vmmshare_fence_array* array, int64_t timeout_ns, vmmshare_error** error);
// Fence `index`. INVALID_ARGUMENT from vmmshare_fence_array_size() on. It has no
// ticket: FAILED_PRECONDITION.
VMMSHARE_API vmmshare_status
vmmshare_fence_array_at(vmmshare_fence_array* array, uint64_t index,
                        vmmshare_fence** fence, vmmshare_error** error);

// A new fence, of value 0. FAILED_PRECONDITION for another process's pool.
VMMSHARE_API vmmshare_status vmmshare_fence_create(vmmshare_fence_pool* pool,
                                                   vmmshare_fence** fence,
                                                   vmmshare_error** error);
#define VMMSHARE_FENCE_TICKET_BYTES 48
// Plain bytes by which another process opens the fence.
VMMSHARE_API vmmshare_status vmmshare_fence_ticket(
    const vmmshare_fence* fence, uint8_t ticket[VMMSHARE_FENCE_TICKET_BYTES],
    vmmshare_error** error);
// The fence of a ticket, from the pool that it belongs to. FAILED_PRECONDITION for
// this process's own pool, and for a fence that is gone.
VMMSHARE_API vmmshare_status vmmshare_fence_open(
    vmmshare_fence_pool* pool,
    const uint8_t ticket[VMMSHARE_FENCE_TICKET_BYTES], int64_t timeout_ns,
    vmmshare_fence** fence, vmmshare_error** error);
// Gives it back. Its pool's memory stays while the pool is open: see
// vmmshare_fence_pool_close().
VMMSHARE_API void vmmshare_fence_close(vmmshare_fence* fence);

// The value becomes `value` once the work that is on `stream` now is done; of
// one thread at a time. Values only grow: FAILED_PRECONDITION.
VMMSHARE_API vmmshare_status vmmshare_fence_signal(vmmshare_fence* fence,
                                                   void* stream, uint64_t value,
                                                   vmmshare_error** error);
// The value grows by `value` once the work that is on `stream` now is done: for
// several that signal one fence and have no order between them. Of an array with
// kernels, whose memory the stream's device may do atomic operations in: its own, or
// over NVLink. FAILED_PRECONDITION for others.
VMMSHARE_API vmmshare_status vmmshare_fence_add(vmmshare_fence* fence,
                                                void* stream, uint64_t value,
                                                vmmshare_error** error);
// Later work on `stream` waits until the fence has reached `value`. As many streams
// that wait at a time as CUDA_DEVICE_MAX_CONNECTIONS says, 8 without it, stop the
// others of the process, unless they wait by kernels: docs/ordering.md.
VMMSHARE_API vmmshare_status vmmshare_fence_wait(vmmshare_fence* fence,
                                                 void* stream, uint64_t value,
                                                 vmmshare_error** error);
// Signals `value` to each of `signals` once the work that is on `stream` now is
// done, and has later work wait for `value` from each of `waits`: with a fence for
// each other rank a barrier of streams. One kernel where all of `waits` are of
// arrays with kernels, and of 127 fences at most. Of one thread at a time. Errors
// as those of its parts; nothing is on the stream then, unless the driver reported
// it.
VMMSHARE_API vmmshare_status vmmshare_fence_meet(vmmshare_fence* const* signals,
                                                 uint64_t signal_count,
                                                 vmmshare_fence* const* waits,
                                                 uint64_t wait_count,
                                                 void* stream, uint64_t value,
                                                 vmmshare_error** error);
// The value becomes `value` at once, from the host; of one thread at a time.
VMMSHARE_API vmmshare_status vmmshare_fence_signal_host(vmmshare_fence* fence,
                                                        uint64_t value,
                                                        vmmshare_error** error);
// Waits on the host. ABORTED when the fence is abandoned.
VMMSHARE_API vmmshare_status vmmshare_fence_wait_host(vmmshare_fence* fence,
                                                      uint64_t value,
                                                      int64_t timeout_ns,
                                                      vmmshare_error** error);
// ABORTED when it is abandoned.
VMMSHARE_API vmmshare_status vmmshare_fence_value(const vmmshare_fence* fence,
                                                  uint64_t* value,
                                                  vmmshare_error** error);
// Lets go of all that wait for it, in all processes, for good.
VMMSHARE_API vmmshare_status vmmshare_fence_abandon(vmmshare_fence* fence,
                                                    vmmshare_error** error);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // VMMSHARE_VMM_C_FENCE_H_
