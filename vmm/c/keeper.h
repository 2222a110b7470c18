// Memory under a name, held by `vmmshare keep`, which outlives its creator.
// docs/keeper.md has the rules.
#ifndef VMMSHARE_VMM_C_KEEPER_H_
#define VMMSHARE_VMM_C_KEEPER_H_

#include <stdint.h>

#include "vmm/c/base.h"
#include "vmm/c/memory.h"

#ifdef __cplusplus
extern "C" {
#endif

// A connection to a keeper. For one thread at a time. All calls of it:
//   DEADLINE_EXCEEDED   the keeper did not answer in time: nothing more can be asked
//                       over the connection, whose locks stay until it is closed.
//                       Where the message names who has the lock, it goes on
//   UNAVAILABLE         the keeper has ended
//   RESOURCE_EXHAUSTED  the first call: the keeper had no room for a connection in
//                       that time
typedef struct vmmshare_keeper vmmshare_keeper;
// `address` NULL: this user's keeper. NOT_FOUND when none listens there.
VMMSHARE_API vmmshare_status vmmshare_keeper_connect(const char* address,
                                                     int64_t timeout_ns,
                                                     vmmshare_keeper** keeper,
                                                     vmmshare_error** error);
// Gives back the writer locks that it gained. Where the connection broke before,
// they stay with this process, whose next connection may lock and unlock.
VMMSHARE_API void vmmshare_keeper_close(vmmshare_keeper* keeper);

// Has the keeper hold `memory` too; this connection has the writer lock then.
// ALREADY_EXISTS when the name is taken; RESOURCE_EXHAUSTED when the keeper is full,
// or the user's quota is; FAILED_PRECONDITION for memory that is private, or ends
// with this process.
VMMSHARE_API vmmshare_status vmmshare_keeper_put(vmmshare_keeper* keeper,
                                                 const char* name,
                                                 const vmmshare_memory* memory,
                                                 int64_t timeout_ns,
                                                 vmmshare_error** error);
// NOT_FOUND when nothing is kept under the name; FAILED_PRECONDITION when it is
// sealed, and to be mapped for writing.
VMMSHARE_API vmmshare_status vmmshare_keeper_attach(
    vmmshare_keeper* keeper, const char* name, const vmmshare_driver* driver,
    const vmmshare_import_options* options, int64_t timeout_ns,
    vmmshare_memory** memory, vmmshare_error** error);
// Read-only from now on; only by who has the writer lock (FAILED_PRECONDITION).
// NOT_FOUND when nothing is kept under the name.
VMMSHARE_API vmmshare_status vmmshare_keeper_seal(vmmshare_keeper* keeper,
                                                  const char* name,
                                                  int64_t timeout_ns,
                                                  vmmshare_error** error);
// Takes the writer lock. FAILED_PRECONDITION when the memory is sealed;
// DEADLINE_EXCEEDED says who holds the lock; NOT_FOUND when nothing is kept.
VMMSHARE_API vmmshare_status vmmshare_keeper_lock(vmmshare_keeper* keeper,
                                                  const char* name,
                                                  int64_t timeout_ns,
                                                  vmmshare_error** error);
// FAILED_PRECONDITION when this connection does not have the lock; NOT_FOUND when
// nothing is kept.
VMMSHARE_API vmmshare_status vmmshare_keeper_unlock(vmmshare_keeper* keeper,
                                                    const char* name,
                                                    int64_t timeout_ns,
                                                    vmmshare_error** error);
// Forgets the name; who has it attached keeps it. NOT_FOUND when nothing is kept
// under it; PERMISSION_DENIED when another user put it, and the keeper is not this
// one's.
VMMSHARE_API vmmshare_status vmmshare_keeper_drop(vmmshare_keeper* keeper,
                                                  const char* name,
                                                  int64_t timeout_ns,
                                                  vmmshare_error** error);
// JSON, as `vmmshare keep --list --json` prints it (docs/keeper.md):
// [{"name": "...", "state": "reserved" | "writable" | "locked" | "sealed",
// "bytes": 4096, "process": 4711, "attached": 2, ...}, ...], by name.
VMMSHARE_API vmmshare_status vmmshare_keeper_list(vmmshare_keeper* keeper,
                                                  int64_t timeout_ns,
                                                  vmmshare_text** json,
                                                  vmmshare_error** error);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // VMMSHARE_VMM_C_KEEPER_H_
