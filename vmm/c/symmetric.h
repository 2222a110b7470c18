// The same amount of memory of every rank's GPU, mapped by all ranks of a job.
#ifndef VMMSHARE_VMM_C_SYMMETRIC_H_
#define VMMSHARE_VMM_C_SYMMETRIC_H_

#include <stdint.h>

#include "vmm/c/base.h"
#include "vmm/c/driver.h"

#ifdef __cplusplus
extern "C" {
#endif

// How the ranks pass plain bytes to each other: the program's own MPI,
// torch.distributed, or store of keys and values. Each function returns by its
// timeout, on the thread that called vmmshare; what it returns as a status is
// the error of the call.
typedef struct vmmshare_exchange {
  uint64_t struct_size;
  const char* job;    // Its name, for messages.
  const char* scope;  // Goes into all keys; NULL: none. Another one for each of
      // several exchanges over one store, the same on all ranks.
  int32_t rank;  // 0 to size - 1.
  int32_t size;
  void* user;  // For the functions.
  // Makes `value` known as this rank's `key`, to all who have returned from the
  // fence that follows.
  vmmshare_status (*put)(void* user, const char* key, const uint8_t* value,
                         uint64_t value_size, int64_t timeout_ns);
  // Returns once every rank has called it. One that failed may have succeeded
  // on others, which then have what was put for it: no later one of this
  // exchange may succeed, nor of another one over the same keys. put and get go
  // on, for they are called then to find out who is missing.
  vmmshare_status (*fence)(void* user, int64_t timeout_ns);
  // What `rank` put as `key` before its last fence. Writes it if `room` is
  // enough, and its size in any case. NOT_FOUND when there is nothing.
  //
  // Every call of vmmshare begins with the same keys again: what is put after that
  // fence, and what an earlier call put, must not be returned for it. A store that
  // cannot tell them apart needs another `scope` for each call.
  vmmshare_status (*get)(void* user, int32_t rank, const char* key,
                         uint8_t* value, uint64_t room, uint64_t* value_size,
                         int64_t timeout_ns);
} vmmshare_exchange;

typedef struct vmmshare_symmetric_options {
  uint64_t struct_size;
  uint64_t size;   // Bytes a rank, the same on all.
  uint32_t kinds;  // VMMSHARE_KIND_*; 0: within a host the system's own,
                   // between hosts fabric handles.
  uint32_t flags;  // 0.
  // For a NULL device: why this rank has none, in words, which all ranks are told.
  // NULL: that there is none.
  const char* no_device;
} vmmshare_symmetric_options;

typedef struct vmmshare_symmetric vmmshare_symmetric;
// Collective: every rank calls it, with the same options; half of the time is
// for all ranks to come. It succeeds on all ranks or on none, but for the last
// round: a rank whose deadline passes there fails, and others may succeed. Treat
// that as the end of the job, or agree on the outcome by a round of your own.
// A rank that could not open its device calls it too, with NULL: else the others
// would wait for it. Also a rank whose handle is refused takes part, and all are
// told why.
//   NOT_FOUND            a rank has no device, and why: its `no_device`
//   INVALID_ARGUMENT     a rank has none and does not say why; size 0, or not the
//                        same on every rank: names them; at once for a size
//                        above 256 * (2^32 - 1), 256 bytes less than 1 TiB
//   FAILED_PRECONDITION  no way between two ranks
//   DEADLINE_EXCEEDED    a rank did not come: names it
VMMSHARE_API vmmshare_status vmmshare_symmetric_create(
    const vmmshare_device* device, const vmmshare_exchange* exchange,
    const vmmshare_symmetric_options* options, int64_t timeout_ns,
    vmmshare_symmetric** symmetric, vmmshare_error** error);
// Unmaps all, in the order of no stream: synchronise, and meet, first.
VMMSHARE_API void vmmshare_symmetric_close(vmmshare_symmetric* symmetric);
// Where this process has `rank`'s memory; 0 for a rank that there is not. They
// lie at equal distances.
VMMSHARE_API uint64_t
vmmshare_symmetric_address(const vmmshare_symmetric* symmetric, int32_t rank);
// Bytes of each.
VMMSHARE_API uint64_t
vmmshare_symmetric_size(const vmmshare_symmetric* symmetric);

// Which parts are in use, alike on every rank and without a word between them:
// each rank makes these calls with the same values in the same order, by one
// thread at a time, and has the same offsets. Takes under a microsecond.
// `alignment`: a power of two up to 2 MiB; 0: 256. No buffer ends beyond
// vmmshare_symmetric_size().
//   INVALID_ARGUMENT    size 0, or such an alignment
//   RESOURCE_EXHAUSTED  no free range is so large; the same on every rank
VMMSHARE_API vmmshare_status vmmshare_symmetric_allocate(
    vmmshare_symmetric* symmetric, uint64_t size, uint64_t alignment,
    uint64_t* offset, vmmshare_error** error);
// What begins there may be handed out again. Streams of other ranks may still
// use it: have the ranks meet first, on their GPUs. NOT_FOUND: nothing does.
VMMSHARE_API vmmshare_status vmmshare_symmetric_free(
    vmmshare_symmetric* symmetric, uint64_t offset, vmmshare_error** error);
// Collective: whether all ranks made the same of these calls.
//   FAILED_PRECONDITION  they did not: names the ranks, and what each did
//   DEADLINE_EXCEEDED    a rank did not come: names it
VMMSHARE_API vmmshare_status vmmshare_symmetric_check_agreed(
    const vmmshare_symmetric* symmetric, const vmmshare_exchange* exchange,
    int64_t timeout_ns, vmmshare_error** error);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // VMMSHARE_VMM_C_SYMMETRIC_H_
