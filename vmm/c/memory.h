// Memory at an address: created here, made by somebody else in this process, or
// imported from another process.
//
// One type for all three. What was imported cannot be shared again: the driver
// refuses it, so the calls that share answer FAILED_PRECONDITION.
#ifndef VMMSHARE_VMM_C_MEMORY_H_
#define VMMSHARE_VMM_C_MEMORY_H_

#include <stddef.h>
#include <stdint.h>

#include "vmm/c/base.h"
#include "vmm/c/driver.h"

#ifdef __cplusplus
extern "C" {
#endif

// How memory can be handed to another process. Bits; the values are CUDA's.
enum {
  VMMSHARE_KIND_POSIX_FD = 1,  // Linux, same machine.
  VMMSHARE_KIND_WIN32 = 2,     // Windows, same machine.
  VMMSHARE_KIND_FABRIC = 8,    // Any node of one NVLink fabric.
  // Weaker: of cudaMalloc(), and of cuMemAllocAsync() from an exportable pool.
  // vmm/memory/driver_block.h says what is weaker. Memory that is created here
  // can have the first, where no other kind that was asked for works; and not
  // the second.
  VMMSHARE_KIND_LEGACY_IPC = 64,
  VMMSHARE_KIND_STREAM_POOL = 128
};

enum {
  // Never shared.
  VMMSHARE_PRIVATE = 1,
  // On NUMA node `numa_node` of the host, which the device and this process's
  // CPUs reach, instead of in the device's memory.
  VMMSHARE_ON_HOST = 2,
  // For network cards and other devices on PCIe (CUDA's gpuDirectRDMACapable):
  // where the machine does it, or VMMSHARE_FAILED_PRECONDITION where it does not.
  // At most one of the two. 4 is a pool's.
  VMMSHARE_RDMA_TRY = 8,
  VMMSHARE_RDMA_REQUIRE = 16
};

typedef struct vmmshare_memory_options {
  uint64_t struct_size;
  uint64_t size;  // Bytes. Rounded up to 2 MiB on current devices.
  // Bytes; 0: one chunk. WSL2: below 4 GiB. Memory of the host is filled chunk by
  // chunk: the driver refuses cuMemset*() over a border.
  uint64_t max_chunk_size;
  uint64_t alignment;   // Bytes, a power of two; 0: the driver's.
  uint32_t kinds;       // Those of VMMSHARE_KIND_* that work here are had
                        // (VMMSHARE_KIND_LEGACY_IPC only where no other
                        // does); 0: this system's own.
  uint32_t flags;       // VMMSHARE_PRIVATE, VMMSHARE_ON_HOST,
                        // VMMSHARE_RDMA_*.
  int32_t numa_node;    // With VMMSHARE_ON_HOST.
  uint32_t peer_count;  // Of `peers`.
  const vmmshare_device* const* peers;  // Further devices that get access.
} vmmshare_memory_options;

enum {
  VMMSHARE_IMPORT_WRITABLE = 1,    // Otherwise read-only.
  VMMSHARE_IMPORT_HOST_ACCESS = 2  // This process's CPUs too, if it is memory
                                   // of the host.
};

typedef struct vmmshare_import_options {
  uint64_t struct_size;
  uint64_t alignment;     // As above.
  uint32_t flags;         // VMMSHARE_IMPORT_*.
  uint32_t device_count;  // Of `devices`.
  // Who maps it; none: the device with which it was created.
  const vmmshare_device* const* devices;
} vmmshare_import_options;

typedef struct vmmshare_memory vmmshare_memory;

// Creates no context, but that VMMSHARE_KIND_LEGACY_IPC makes the device's
// primary one.
//   INVALID_ARGUMENT     size 0; a limit of chunks under the granularity; alignment
//                        that is no power of two; a NUMA node that is not there
//   FAILED_PRECONDITION  a device of `peers` cannot reach it; VMMSHARE_RDMA_REQUIRE
//                        where that is not had
//   RESOURCE_EXHAUSTED   it does not fit
//   else                 why no kind works here
VMMSHARE_API vmmshare_status vmmshare_memory_create(
    const vmmshare_device* device, const vmmshare_memory_options* options,
    vmmshare_memory** memory, vmmshare_error** error);

// Memory that another part of this process made with cuMemCreate() and mapped
// at `address`. Where no context of a device that may access it is current, the
// primary one of the memory's own device is, for the length of the call.
// FAILED_PRECONDITION for other memory (the message says what it is and what to do).
VMMSHARE_API vmmshare_status vmmshare_memory_adopt(
    const vmmshare_driver* driver, uint64_t address, uint64_t size,
    vmmshare_memory** memory, vmmshare_error** error);

// The same, and memory of cudaMalloc() or of a pool too if `accept` has
// VMMSHARE_KIND_LEGACY_IPC or VMMSHARE_KIND_STREAM_POOL. Of such memory the whole
// allocation is shared and nothing is held: its owner keeps it until all who
// opened it have closed it.
VMMSHARE_API vmmshare_status vmmshare_memory_adopt_as(
    const vmmshare_driver* driver, uint64_t address, uint64_t size,
    uint32_t accept, vmmshare_memory** memory, vmmshare_error** error);

// Copies `size` bytes from `from`, which the driver knows, to `offset` bytes into
// memory that was created here, and returns when they are there. In the primary
// context of the device of `memory`; into memory of the host in the current one, and
// in that one where the thread has none: on the default stream. Where the current one
// is another one of that device, as cuCtxCreate() makes it, it comes after what is on
// the default stream of that. Of 0 bytes it waits for nothing: later copies in the
// primary context come after that.
// INVALID_ARGUMENT when they leave it; FAILED_PRECONDITION for memory that was
// adopted or imported, and while a stream is captured into a graph that the default
// one of another context synchronises with.
VMMSHARE_API vmmshare_status
vmmshare_memory_write(const vmmshare_memory* memory, uint64_t offset,
                      uint64_t from, uint64_t size, vmmshare_error** error);

// Unmaps it, in the order of no stream: synchronise first. Peers that imported
// it keep it; so does the server that serves it, until its share is closed.
VMMSHARE_API void vmmshare_memory_close(vmmshare_memory* memory);

// A device pointer. Of adopted memory, the address that was given.
VMMSHARE_API uint64_t vmmshare_memory_address(const vmmshare_memory* memory);
// Bytes: mapped, and asked for by who created it.
VMMSHARE_API uint64_t vmmshare_memory_size(const vmmshare_memory* memory);
VMMSHARE_API uint64_t
vmmshare_memory_requested_size(const vmmshare_memory* memory);
// Bytes from the beginning of what is shared to the address; 0 but for adopted
// memory, where an importer finds the data so far into its mapping.
VMMSHARE_API uint64_t vmmshare_memory_offset(const vmmshare_memory* memory);
// VMMSHARE_KIND_* bits as which it can be shared; 0 for imported memory.
VMMSHARE_API uint32_t vmmshare_memory_kinds(const vmmshare_memory* memory);
// Of memory whose kind is a weaker one: what is weaker about it, for people; of
// all other memory an empty text. vmmshare_text_free() frees it.
VMMSHARE_API vmmshare_status
vmmshare_memory_weakness(const vmmshare_memory* memory, vmmshare_text** text,
                         vmmshare_error** error);
// The bytes that whoever opens it can reach, with all that lies there: of such
// memory the driver's whole blocks, of adopted memory of cuMemCreate() whole chunks.
// 0 where that is no more than the memory itself. `base` or `size` may be NULL.
VMMSHARE_API void vmmshare_memory_disclosed(const vmmshare_memory* memory,
                                            uint64_t* base, uint64_t* size);
// Whether the memory can be registered with a network card, in `capable`: as the
// driver says of each chunk or, of imported memory, as its owner said. `refusal`,
// unless NULL, is why not, of what was created with VMMSHARE_RDMA_TRY; else an
// empty text. vmmshare_text_free() frees it.
//   VMMSHARE_FAILED_PRECONDITION  adopted memory
VMMSHARE_API vmmshare_status vmmshare_memory_rdma(const vmmshare_memory* memory,
                                                  int* capable,
                                                  vmmshare_text** refusal,
                                                  vmmshare_error** error);
// The NUMA node of the host where it lives; -1 for memory of a device.
VMMSHARE_API int32_t vmmshare_memory_numa_node(const vmmshare_memory* memory);
// The UUID of the device with which it was created, unless `uuid` is NULL.
VMMSHARE_API void vmmshare_memory_device_uuid(const vmmshare_memory* memory,
                                              uint8_t uuid[16]);

// JSON: [{"kind": "POSIX fd", "why": "..."}, ...], of the kinds of handle that were
// asked for and are not had, of memory that was created here; else [].
VMMSHARE_API vmmshare_status
vmmshare_memory_passed_over(const vmmshare_memory* memory, vmmshare_text** json,
                            vmmshare_error** error);
// JSON: [[address, bytes], ...], of this process's other allocations within what is
// disclosed of adopted memory that is not cuMemCreate()'s; else []. Takes some ms.
VMMSHARE_API vmmshare_status
vmmshare_memory_neighbours(const vmmshare_memory* memory, vmmshare_text** json,
                           vmmshare_error** error);

// Of imported memory: whether its owner still serves it, and wants it back.
//   OK                   `*return_in_ns` is VMMSHARE_FOREVER if it does not, or
//                        how long there is to let go of it, which is less, also
//                        if the owner set no end, and below 0 when that has
//                        passed; VMMSHARE_FOREVER after a failure, too
//   UNAVAILABLE          the owner has ended; what is mapped stays valid
//   FAILED_PRECONDITION  it did not come from a server
VMMSHARE_API vmmshare_status
vmmshare_memory_lease(const vmmshare_memory* memory, int64_t* return_in_ns,
                      vmmshare_error** error);

typedef struct vmmshare_pointer_info {
  uint64_t struct_size;
  int32_t kind;       // VMMSHARE_POINTER_*.
  int32_t adoptable;  // 1: vmmshare_memory_adopt() takes it.
  uint64_t base;      // Where the range around it begins.
  uint64_t size;      // The range's bytes.
  uint32_t kinds;     // VMMSHARE_KIND_* bits as which it can be shared.
  int32_t numa_node;  // Where it lives on the host; -1: elsewhere.
  int32_t device;     // Of memory of cuMemCreate(): the ordinal of the device
                      // where it lives; -1: on none, or of other memory.
  uint32_t reserved;  // 0.
  char advice[512];   // What to do where it cannot be shared.
} vmmshare_pointer_info;
enum {
  VMMSHARE_POINTER_NOT_CUDA = 0,
  VMMSHARE_POINTER_VMM = 1,
  VMMSHARE_POINTER_POOL = 2,          // cuMemAllocAsync().
  VMMSHARE_POINTER_DEVICE_ALLOC = 3,  // cudaMalloc().
  VMMSHARE_POINTER_MANAGED = 4,
  VMMSHARE_POINTER_PINNED_HOST = 5
};
// What kind of memory an address belongs to. Needs no context and leaves no
// error behind.
VMMSHARE_API vmmshare_status vmmshare_classify(const vmmshare_driver* driver,
                                               uint64_t address,
                                               vmmshare_pointer_info* info,
                                               vmmshare_error** error);
// The ordinal of a device whose kernels reach what is at `address`: where it
// lives if that maps it, else the first that does, as of memory of another GPU,
// or of one that this process does not see; -1 where none does.
VMMSHARE_API vmmshare_status
vmmshare_reached_from(const vmmshare_driver* driver, uint64_t address,
                      int32_t* ordinal, vmmshare_error** error);

// A handle as other libraries make and want it: cuda.core, NCCL, NIXL, Vulkan,
// an own transport. One stands for one chunk.
typedef struct vmmshare_raw_handle {
  uint32_t kind;       // One of VMMSHARE_KIND_*.
  uint32_t reserved;   // 0.
  uint64_t size;       // Bytes of the chunk.
  intptr_t os_handle;  // A descriptor or HANDLE; -1 where the kind has none.
  uint8_t fabric[64];  // A fabric handle's bytes, or a weaker kind's.
} vmmshare_raw_handle;

// How many chunks `memory` has: one, unless max_chunk_size said otherwise.
VMMSHARE_API uint32_t vmmshare_memory_chunks(const vmmshare_memory* memory);
// Exports chunk `chunk` as `kind`. A descriptor or HANDLE is the caller's to
// close; until then it keeps the memory.
VMMSHARE_API vmmshare_status vmmshare_memory_export(
    const vmmshare_memory* memory, uint32_t chunk, uint32_t kind,
    vmmshare_raw_handle* handle, vmmshare_error** error);
// Maps `count` chunks side by side, which other software may have made; all of
// one kind, and of one size but the last. `device` is where the memory is, or
// for memory of the host (VMMSHARE_ON_HOST, the only bit of `flags`) who maps it; that
// is on `numa_node`, 0 or more, which is the caller's word. The handles stay the
// caller's.
VMMSHARE_API vmmshare_status vmmshare_memory_import(
    const vmmshare_device* device, const vmmshare_raw_handle* handles,
    uint32_t count, uint32_t flags, int32_t numa_node,
    const vmmshare_import_options* options, vmmshare_memory** memory,
    vmmshare_error** error);

// One chunk's part of a range, as Linux's dma-buf: for ibv_reg_dmabuf_mr() and
// other drivers.
typedef struct vmmshare_dma_buf {
  int descriptor;
  int32_t reserved;  // 0.
  uint64_t offset;   // Bytes from the memory's address.
  uint64_t size;     // Bytes.
} vmmshare_dma_buf;

enum {
  VMMSHARE_DMA_BUF_PCIE = 1  // Reached over PCIe (BAR1), also where there is
                             // another way.
};

// Exports `size` bytes from `offset` on (0: all from there), multiples of the
// host's page size, of memory that was created here: one dma-buf for each chunk
// that the range touches, in order. `bufs` has room for `room`, and may be NULL
// where that is 0; vmmshare_memory_chunks() are enough. The descriptors are the
// caller's to close, and keep the memory but not its address. On failure none stays
// open. Needs no current context: the device's primary one is, for the length of
// the call.
//   VMMSHARE_INVALID_ARGUMENT     no multiple, a range that leaves the memory, or
//                                 too little room: *count is what is needed
//   VMMSHARE_FAILED_PRECONDITION  memory of the host, or not created here; or the
//                                 device has no dma-buf
//   VMMSHARE_UNIMPLEMENTED        Windows; a driver that is too old; a device that
//                                 lacks the mapping over PCIe
VMMSHARE_API vmmshare_status vmmshare_memory_dma_bufs(
    const vmmshare_memory* memory, uint64_t offset, uint64_t size,
    uint32_t flags, vmmshare_dma_buf* bufs, uint32_t room, uint32_t* count,
    vmmshare_error** error);
// The same of the pages around [address, address + size), whoever made them: a
// pool's block, imported memory, cudaMalloc()'s, another library's. Offsets are from
// the beginning of the first page. Whoever gets a descriptor reaches what lies beside
// the range in its pages too. What is there must stay mapped until this returns, and
// a pool's block be freed only when nobody uses the descriptor.
//   VMMSHARE_INVALID_ARGUMENT     no bytes; or nothing of the driver's is mapped in
//                                 all of it; or too little room
//   VMMSHARE_FAILED_PRECONDITION  also: managed memory; memory that is mapped for
//                                 reading alone, for a descriptor gives whole
//                                 access; no device seen here reaches it
VMMSHARE_API vmmshare_status vmmshare_dma_bufs(const vmmshare_driver* driver,
                                               uint64_t address, uint64_t size,
                                               uint32_t flags,
                                               vmmshare_dma_buf* bufs,
                                               uint32_t room, uint32_t* count,
                                               vmmshare_error** error);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // VMMSHARE_VMM_C_MEMORY_H_
