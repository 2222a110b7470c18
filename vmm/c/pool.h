// Many small blocks out of few large pieces of memory, and those of another
// process. Sharing one is copying 56 bytes.
//
// `stream` is a CUstream, NULL for the current context's default stream, which
// is CU_STREAM_LEGACY. What is freed on a stream may be used again by later work
// of that stream. CU_STREAM_PER_THREAD is INVALID_ARGUMENT.
#ifndef VMMSHARE_VMM_C_POOL_H_
#define VMMSHARE_VMM_C_POOL_H_

#include <stddef.h>
#include <stdint.h>

#include "vmm/c/base.h"
#include "vmm/c/driver.h"
#include "vmm/c/memory.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
  // Of a pool: the callers mean CU_STREAM_PER_THREAD by NULL, as code does that
  // was compiled for per-thread default streams. NULL is refused then as well.
  VMMSHARE_NULL_STREAM_PER_THREAD = 4
};

typedef struct vmmshare_pool_options {
  uint64_t struct_size;
  uint64_t first_segment_size;          // Bytes; 0: 32 MiB.
  uint64_t max_segment_size;            // Bytes; 0: 1 GiB.
  uint64_t cap;                         // Bytes of all segments; 0: no limit.
  uint32_t kinds;                       // As in vmmshare_memory_options.
  uint32_t flags;                       // As there, and the flag above.
  int32_t numa_node;                    // As there.
  uint32_t peer_count;                  // As there.
  const vmmshare_device* const* peers;  // As there.
} vmmshare_pool_options;

typedef struct vmmshare_pool vmmshare_pool;
// Takes no memory yet. `options` may be NULL. FAILED_PRECONDITION where a device of
// `peers` cannot reach the memory; INVALID_ARGUMENT for sizes that make no sense.
VMMSHARE_API vmmshare_status vmmshare_pool_create(
    const vmmshare_device* device, const vmmshare_pool_options* options,
    vmmshare_pool** pool, vmmshare_error** error);
// Gives all memory back, live blocks too, in the order of no stream: synchronise
// first, those on which blocks were freed too. What peers hold stays theirs, but for
// memory of VMMSHARE_KIND_LEGACY_IPC: let it outlive its peers.
VMMSHARE_API void vmmshare_pool_close(vmmshare_pool* pool);

// In place of a stream, in vmmshare_pool_allocate() and vmmshare_pool_free(), of who
// does not know which ones use the block. It is allocated of memory that the GPU
// is done with, for work on any stream. It is freed after the work that is on any
// stream which synchronises with the legacy default stream: one that does not
// (CU_STREAM_NON_BLOCKING) is synchronised before.
#define VMMSHARE_ALL_STREAMS ((void*)~(uintptr_t)1)

// A block of `size` bytes at a multiple of `alignment` (a power of two; 0: 256).
// RESOURCE_EXHAUSTED when the cap or the device does not allow it.
VMMSHARE_API vmmshare_status
vmmshare_pool_allocate(vmmshare_pool* pool, uint64_t size, uint64_t alignment,
                       void* stream, uint64_t* address, vmmshare_error** error);
// INVALID_ARGUMENT when it points into a block, or is in no memory of the pool;
// FAILED_PRECONDITION when it is free already, or none ever began there.
VMMSHARE_API vmmshare_status vmmshare_pool_free(vmmshare_pool* pool,
                                                uint64_t address, void* stream,
                                                vmmshare_error** error);

#define VMMSHARE_BLOCK_TICKET_BYTES 56
// Tickets of `count` blocks, one after the other: plain bytes for whoever
// subscribed to the pool's share. The same again until the block is freed.
VMMSHARE_API vmmshare_status vmmshare_pool_tickets(vmmshare_pool* pool,
                                                   const uint64_t* addresses,
                                                   size_t count,
                                                   uint8_t* tickets,
                                                   vmmshare_error** error);

// The block around `inside`, an address anywhere in it: where it begins and the
// bytes that were asked for. NOT_FOUND when it is in none that is live.
VMMSHARE_API vmmshare_status vmmshare_pool_find(const vmmshare_pool* pool,
                                                uint64_t inside, uint64_t* base,
                                                uint64_t* size,
                                                vmmshare_error** error);
// Tickets of the blocks around `count` addresses, of whichever pools of this
// process: views, aliases and tensors that an allocator cut from a block. Each
// block has one ticket; `tickets` has room for `count`, and `*ticket_count` says
// how many there are. Address i is `offsets[i]` bytes into block `which[i]`.
// NOT_FOUND for an address in no block. Of a forked child these are the pools that it
// made itself; FAILED_PRECONDITION where its parent alone had some.
VMMSHARE_API vmmshare_status vmmshare_tickets_around(
    const uint64_t* addresses, size_t count, uint8_t* tickets, uint32_t* which,
    uint64_t* offsets, size_t* ticket_count, vmmshare_error** error);

typedef struct vmmshare_pool_statistics {
  uint64_t struct_size;
  uint64_t reserved;   // Bytes in segments.
  uint64_t live;       // Bytes in blocks that the program has.
  uint64_t requested;  // Of these, what was asked for.
  uint64_t held;       // Bytes freed, in use by a peer still.
  uint64_t free;       // Bytes in no block.
  uint64_t live_blocks;
  uint64_t tickets;  // Blocks that are exported now.
  uint64_t peers;    // Subscribed now.
  uint64_t allocations;
  uint64_t frees;
} vmmshare_pool_statistics;
VMMSHARE_API vmmshare_status vmmshare_pool_get_statistics(
    const vmmshare_pool* pool, vmmshare_pool_statistics* statistics,
    vmmshare_error** error);

// What is weaker about the pool's memory than about memory of cuMemCreate(), for
// people (VMMSHARE_KIND_LEGACY_IPC): empty if nothing is, and as long as the pool
// has no memory.
VMMSHARE_API vmmshare_status vmmshare_pool_weakness(const vmmshare_pool* pool,
                                                    vmmshare_text** text,
                                                    vmmshare_error** error);

// Whether network cards can be given all memory that the pool has now, and why not:
// `refusal`, which may be NULL, is text. Not so, too, while it has none.
VMMSHARE_API vmmshare_status vmmshare_pool_rdma(const vmmshare_pool* pool,
                                                int* capable,
                                                vmmshare_text** refusal,
                                                vmmshare_error** error);

// Gives idle segments back but for `keep_bytes`; `freed` may be NULL.
VMMSHARE_API vmmshare_status vmmshare_pool_trim(vmmshare_pool* pool,
                                                uint64_t keep_bytes,
                                                uint64_t* freed,
                                                vmmshare_error** error);
// Call before a stream is destroyed.
VMMSHARE_API vmmshare_status
vmmshare_pool_release_stream(vmmshare_pool* pool, void* stream,
                             int64_t timeout_ns, vmmshare_error** error);
// Work that is put on `then` after this call comes after what is on `first` now:
// for a block that was allocated for `first` and is used on `then` first. The GPU
// waits; this call does, so long at most, where `then` is being captured into a
// graph (DEADLINE_EXCEEDED). FAILED_PRECONDITION where `first` alone is, or is a
// default stream and one that synchronises with that is; where both are captured,
// who launches their graphs has their order, and nothing is done.
VMMSHARE_API vmmshare_status vmmshare_pool_order(vmmshare_pool* pool,
                                                 void* first, void* then,
                                                 int64_t timeout_ns,
                                                 vmmshare_error** error);

// Asks those that hold the `count` blocks to give them back within `within_ns`;
// all blocks, freed ones too, when `addresses` is NULL. Waits for nobody.
VMMSHARE_API vmmshare_status vmmshare_pool_recall(vmmshare_pool* pool,
                                                  const uint64_t* addresses,
                                                  size_t count,
                                                  int64_t within_ns,
                                                  vmmshare_error** error);
// OK once nobody holds them; DEADLINE_EXCEEDED names who still does.
VMMSHARE_API vmmshare_status vmmshare_pool_wait_returned(
    const vmmshare_pool* pool, const uint64_t* addresses, size_t count,
    int64_t timeout_ns, vmmshare_error** error);
// JSON as vmmshare_server_leases(), with "block", the address, for "memory",
// and "freed".
VMMSHARE_API vmmshare_status vmmshare_pool_leases(const vmmshare_pool* pool,
                                                  vmmshare_text** json,
                                                  vmmshare_error** error);

// The pool of another process.
typedef struct vmmshare_imported_pool vmmshare_imported_pool;
// `text` is that of the share. Errors as vmmshare_memory_open().
VMMSHARE_API vmmshare_status vmmshare_imported_pool_open(
    const vmmshare_driver* driver, const char* text,
    const vmmshare_import_options* options, int64_t timeout_ns,
    vmmshare_imported_pool** pool, vmmshare_error** error);
// The pool ends with the last of its handle and its blocks: then its memory is
// unmapped and its owner told. That is done when this returns if there is no block
// any more and no work of a stream is waited for; else by a thread of its own,
// which waits for that work, as long as it takes, and which nobody waits for.
VMMSHARE_API void vmmshare_imported_pool_close(vmmshare_imported_pool* pool);
// OK while the owner serves this process; UNAVAILABLE once it does not, DATA_LOSS
// when it broke the protocol, RESOURCE_EXHAUSTED when what it sent could not be taken
// here. What is imported stays valid.
VMMSHARE_API vmmshare_status vmmshare_imported_pool_connection(
    const vmmshare_imported_pool* pool, vmmshare_error** error);
// As vmmshare_pool_weakness(), of what is mapped here now: whoever has a block has
// its memory mapped, and more may come.
VMMSHARE_API vmmshare_status
vmmshare_imported_pool_weakness(const vmmshare_imported_pool* pool,
                                vmmshare_text** text, vmmshare_error** error);
// The blocks that their owner wants back, as addresses here: up to `room` of
// them are written, and `*count` says how many there are.
VMMSHARE_API vmmshare_status vmmshare_imported_pool_recalled(
    const vmmshare_imported_pool* pool, uint64_t* addresses, size_t room,
    size_t* count, vmmshare_error** error);

// Waits until blocks are asked back that were not when `*seen` was written, 0 at
// first: then recalled() says which are now. UNAVAILABLE once the owner serves
// this process no more.
VMMSHARE_API vmmshare_status vmmshare_imported_pool_wait_recalled(
    const vmmshare_imported_pool* pool, uint64_t* seen, int64_t timeout_ns,
    vmmshare_error** error);

// A block of another process, which keeps it until this is closed.
typedef struct vmmshare_block vmmshare_block;
// The blocks of `count` tickets, one after the other. All or nothing. Waits
// only for memory that is on its way.
//   FAILED_PRECONDITION  the block was freed
//   INVALID_ARGUMENT     no ticket, or of another pool
//   UNAVAILABLE          the connection has ended before its memory came
VMMSHARE_API vmmshare_status vmmshare_imported_pool_import(
    vmmshare_imported_pool* pool, const uint8_t* tickets, size_t count,
    int64_t timeout_ns, vmmshare_block** blocks, vmmshare_error** error);
VMMSHARE_API uint64_t vmmshare_block_address(const vmmshare_block* block);
// Bytes that the owner asked for.
VMMSHARE_API uint64_t vmmshare_block_size(const vmmshare_block* block);
// Gives it back at once, in the order of no stream: synchronise first. Waits for
// nobody, calls the driver never but for memory that the owner has given up, and may
// be called by any thread. The last of a pool that is closed starts the thread that
// ends the pool.
VMMSHARE_API void vmmshare_block_close(vmmshare_block* block);
// Closes it once the work that is on `stream` now is done; does not wait. After
// a failure the block is still the caller's: INVALID_ARGUMENT for
// VMMSHARE_ALL_STREAMS, FAILED_PRECONDITION where no context is current, for
// CU_STREAM_LEGACY too, and while `stream` is captured into a graph.
VMMSHARE_API vmmshare_status vmmshare_block_close_after(vmmshare_block* block,
                                                        void* stream,
                                                        vmmshare_error** error);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // VMMSHARE_VMM_C_POOL_H_
