// Handing memory to another process: by a text that it opens, or over a
// connection that both have.
#ifndef VMMSHARE_VMM_C_SHARE_H_
#define VMMSHARE_VMM_C_SHARE_H_

#include <stdint.h>

#include "vmm/c/base.h"
#include "vmm/c/memory.h"
#include "vmm/c/pool.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct vmmshare_server_options {
  uint64_t struct_size;
  // The folder of the socket; NULL: $NVIDIA_DRA_LOCAL_IPC_DIR, or else
  // $XDG_RUNTIME_DIR/vmmshare, or else /tmp/vmmshare-UID.
  const char* directory;
  const char* name;             // The socket's; NULL: random.
  uint32_t max_sessions;        // Peers served at once; 0: 64. And
  uint32_t max_leases;          // imports out at once; 0: 256. A process has
                                // at most half of either.
  int64_t request_timeout_ns;   // For a silent peer; 0: 5 s.
  int64_t transfer_timeout_ns;  // For one that imports slowly; 0: 30 s.
} vmmshare_server_options;

typedef struct vmmshare_server vmmshare_server;
// Serves memory and pools to processes of the same user, on threads of its own.
// INVALID_ARGUMENT for a timeout below 0.
VMMSHARE_API vmmshare_status
vmmshare_server_start(const vmmshare_server_options* options,
                      vmmshare_server** server, vmmshare_error** error);
VMMSHARE_API void vmmshare_server_close(vmmshare_server* server);
// The path of its socket, which lives as long as the server. Once something else has
// removed that, as the end of a login does $XDG_RUNTIME_DIR, nobody can connect any
// more: start another server.
VMMSHARE_API const char* vmmshare_server_address(const vmmshare_server* server);

// What a server serves, until it is closed. It keeps the memory.
typedef struct vmmshare_share vmmshare_share;
// FAILED_PRECONDITION for memory that is private or imported. The same may be
// shared more than once.
VMMSHARE_API vmmshare_status vmmshare_server_share_memory(
    vmmshare_server* server, const vmmshare_memory* memory,
    vmmshare_share** share, vmmshare_error** error);
// The same for a pool.
VMMSHARE_API vmmshare_status vmmshare_server_share_pool(vmmshare_server* server,
                                                        vmmshare_pool* pool,
                                                        vmmshare_share** share,
                                                        vmmshare_error** error);
VMMSHARE_API void vmmshare_share_close(vmmshare_share* share);
// What the importer is given, by whatever means the program has: text without
// white space. It is the key to this share and to no other: whoever of the
// allowed users has it has the memory. Valid until the share is closed.
VMMSHARE_API const char* vmmshare_share_text(const vmmshare_share* share);

// Opens the text of a share of memory.
//   NOT_FOUND           nobody serves it any more
//   UNAVAILABLE         its owner stopped serving, or ended, in that moment
//   PERMISSION_DENIED   it is another user's, or not shared with this one
//   INVALID_ARGUMENT    no such text, or damaged
//   UNIMPLEMENTED       of another release
//   RESOURCE_EXHAUSTED  the owner had no room for another peer in that time; with
//                       VMMSHARE_FOREVER it is asked once
//   DEADLINE_EXCEEDED   the owner did not answer in that time
//   else                why it cannot be mapped here
VMMSHARE_API vmmshare_status
vmmshare_memory_open(const vmmshare_driver* driver, const char* text,
                     const vmmshare_import_options* options, int64_t timeout_ns,
                     vmmshare_memory** memory, vmmshare_error** error);

// The handles of a share of memory, for software that maps them itself: nothing is
// mapped here. The owner counts it as held until this is closed, so close it when
// that software has let go of the memory. For one thread at a time.
typedef struct vmmshare_fetched vmmshare_fetched;
// Errors as vmmshare_memory_open(); PERMISSION_DENIED for what is shared for
// reading only, for a handle gives whole access.
VMMSHARE_API vmmshare_status vmmshare_fetch(const vmmshare_driver* driver,
                                            const char* text,
                                            int64_t timeout_ns,
                                            vmmshare_fetched** fetched,
                                            vmmshare_error** error);
VMMSHARE_API void vmmshare_fetched_close(vmmshare_fetched* fetched);
// How many chunks the memory has, with a handle each.
VMMSHARE_API uint32_t vmmshare_fetched_chunks(const vmmshare_fetched* fetched);
// Hands over the handle of chunk `chunk`, which is the caller's to close. Once:
// FAILED_PRECONDITION after that; OUT_OF_RANGE for a chunk that there is not.
VMMSHARE_API vmmshare_status vmmshare_fetched_take(vmmshare_fetched* fetched,
                                                   uint32_t chunk,
                                                   vmmshare_raw_handle* handle,
                                                   vmmshare_error** error);
// As vmmshare_memory_lease().
VMMSHARE_API vmmshare_status
vmmshare_fetched_lease(const vmmshare_fetched* fetched, int64_t* return_in_ns,
                       vmmshare_error** error);

// Who holds memory of this server. Two of these calls wait, and say so in their
// names.
//
// Asks all who hold `memory` to let go of it within `within_ns`.
VMMSHARE_API vmmshare_status
vmmshare_server_recall(vmmshare_server* server, const vmmshare_memory* memory,
                       int64_t within_ns, vmmshare_error** error);
// The same for all memory that it shares.
VMMSHARE_API vmmshare_status vmmshare_server_recall_all(vmmshare_server* server,
                                                        int64_t within_ns,
                                                        vmmshare_error** error);
// JSON: [{"memory": "...", "bytes": 4096, "process": 4711, "milliseconds": 2500,
// "state": "held" | "recalled" | "quarantined"}, ...].
VMMSHARE_API vmmshare_status
vmmshare_server_leases(const vmmshare_server* server, vmmshare_text** json,
                       vmmshare_error** error);
// OK once nobody holds anything of this server; DEADLINE_EXCEEDED names who
// still does.
VMMSHARE_API vmmshare_status vmmshare_server_wait_returned(
    const vmmshare_server* server, int64_t timeout_ns, vmmshare_error** error);
// As vmmshare_server_leases(), of `memory` alone.
VMMSHARE_API vmmshare_status vmmshare_server_memory_leases(
    const vmmshare_server* server, const vmmshare_memory* memory,
    vmmshare_text** json, vmmshare_error** error);
// As vmmshare_server_wait_returned(), of `memory` alone.
VMMSHARE_API vmmshare_status vmmshare_server_wait_memory_returned(
    const vmmshare_server* server, const vmmshare_memory* memory,
    int64_t timeout_ns, vmmshare_error** error);

// A connection between two processes, for sending memory directly. For one
// thread at a time.
typedef struct vmmshare_channel vmmshare_channel;
// Takes over a connected SOCK_SEQPACKET socket, for example one end of a
// socketpair() that a child has inherited. It is closed even after a failure.
VMMSHARE_API vmmshare_status vmmshare_channel_adopt(intptr_t socket,
                                                    vmmshare_channel** channel,
                                                    vmmshare_error** error);
VMMSHARE_API void vmmshare_channel_close(vmmshare_channel* channel);
// Returns once the peer has mapped all `count` of `memory`. INVALID_ARGUMENT for
// more than 65,536, or one of more chunks than that.
VMMSHARE_API vmmshare_status vmmshare_channel_send_memory(
    vmmshare_channel* channel, const vmmshare_memory* const* memory,
    uint32_t count, int64_t timeout_ns, vmmshare_error** error);
// Receives and maps `count`, which must be how many were sent at once.
VMMSHARE_API vmmshare_status vmmshare_channel_receive_memory(
    vmmshare_channel* channel, const vmmshare_driver* driver,
    const vmmshare_import_options* options, uint32_t count, int64_t timeout_ns,
    vmmshare_memory** memory, vmmshare_error** error);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // VMMSHARE_VMM_C_SHARE_H_
