// Memory that goes back to the device for a while and returns at the same
// addresses, in the process that made it and in those that opened it; and regions,
// of which all memory does so at once (docs/sleep.md).
#ifndef VMMSHARE_VMM_C_RESTORABLE_H_
#define VMMSHARE_VMM_C_RESTORABLE_H_

#include <stdint.h>

#include "vmm/c/base.h"
#include "vmm/c/driver.h"
#include "vmm/c/memory.h"
#include "vmm/c/share.h"

#ifdef __cplusplus
extern "C" {
#endif

// Own memory that a server serves, or another process's. Releasing and restoring
// wait for each other; addresses, sizes and text never change.
typedef struct vmmshare_restorable vmmshare_restorable;

// Makes memory, as vmmshare_memory_create(), and serves it until it is closed.
// It keeps the server.
VMMSHARE_API vmmshare_status vmmshare_restorable_create(
    vmmshare_server* server, const vmmshare_device* device,
    const vmmshare_memory_options* options, vmmshare_restorable** restorable,
    vmmshare_error** error);
// Opens the text of another process's, or of a share of memory. Errors as
// vmmshare_memory_open().
VMMSHARE_API vmmshare_status vmmshare_restorable_open(
    const vmmshare_driver* driver, const char* text,
    const vmmshare_import_options* options, int64_t timeout_ns,
    vmmshare_restorable** restorable, vmmshare_error** error);
// Unmaps it, in the order of no stream: synchronise first.
VMMSHARE_API void vmmshare_restorable_close(vmmshare_restorable* restorable);

VMMSHARE_API uint64_t
vmmshare_restorable_address(const vmmshare_restorable* restorable);
// Bytes: mapped, and asked for by who created it.
VMMSHARE_API uint64_t
vmmshare_restorable_size(const vmmshare_restorable* restorable);
VMMSHARE_API uint64_t
vmmshare_restorable_requested_size(const vmmshare_restorable* restorable);
// Of own memory, what others open; "" of another process's. The same all the
// time, also while it is released. Valid until it is closed.
VMMSHARE_API const char* vmmshare_restorable_text(
    const vmmshare_restorable* restorable);
// 1 while nothing is mapped there.
VMMSHARE_API int32_t
vmmshare_restorable_is_released(const vmmshare_restorable* restorable);
// Of another process's: whether its owner wants it back, as
// vmmshare_memory_lease(). FAILED_PRECONDITION while it is released, and while
// another call releases or restores it.
VMMSHARE_API vmmshare_status
vmmshare_restorable_lease(const vmmshare_restorable* restorable,
                          int64_t* return_in_ns, vmmshare_error** error);

enum {
  VMMSHARE_KEEP_NOTHING = 1  // Own memory is not copied to the host first: it
                             // is filled when it is restored.
};
// Own memory: recalls it, waits until nobody has it, copies it to pinned memory
// of the host, and gives it back to the device. Another process's: unmaps it and
// gives it back to its owner; `flags` is 0 then, and nothing is waited for.
//   DEADLINE_EXCEEDED    names who has not let go, or another call releases or
//                        restores it; nothing has changed
//   RESOURCE_EXHAUSTED   the host has too little memory; nothing has changed
//   FAILED_PRECONDITION  it is released
// Where the driver fails to unmap, that is told, and it is released all the same. All
// work of this process that uses the memory must have ended.
VMMSHARE_API vmmshare_status
vmmshare_restorable_release(vmmshare_restorable* restorable, uint32_t flags,
                            int64_t timeout_ns, vmmshare_error** error);

// How own memory is filled: at most one of `fill` and `path`. Neither: with what
// was kept.
typedef struct vmmshare_restore_options {
  uint64_t struct_size;
  // Fills `size` bytes at `address`, as many as were asked for by who created it, on
  // the calling thread; all that it starts has ended when it returns. A status other
  // than OK ends the restoring, and is its error. It may not release, restore or
  // close this restorable.
  vmmshare_status (*fill)(void* user, uint64_t address, uint64_t size);
  void* user;        // For `fill`.
  const char* path;  // A file, read from `offset` on.
  uint64_t offset;
} vmmshare_restore_options;
// Own memory: makes memory at the same address, fills it and serves it; waits for
// no process. Another process's: asks its owner again until `timeout_ns`
// (VMMSHARE_FOREVER: once), and maps what that has now; `options` is NULL then.
//   DEADLINE_EXCEEDED    another call releases or restores it
//   RESOURCE_EXHAUSTED   the memory does not fit; or its owner has not restored it
//   FAILED_PRECONDITION  it is not released; or nothing was kept and nothing is
//                        said of how to fill it; or `path` is a folder or a FIFO
//   NOT_FOUND            no such file; or nobody serves the memory any more
//   DATA_LOSS            the file ends too early
//   INVALID_ARGUMENT     no file has so many bytes from `offset` on
// After a failure it is released as before.
VMMSHARE_API vmmshare_status vmmshare_restorable_restore(
    vmmshare_restorable* restorable, const vmmshare_restore_options* options,
    int64_t timeout_ns, vmmshare_error** error);

// Allocations of one device that are released and restored together. They are this
// process's alone. Calls may come from several threads; they wait for a release or
// a restore that goes on.
typedef struct vmmshare_region vmmshare_region;
VMMSHARE_API vmmshare_status
vmmshare_region_create(const vmmshare_device* device, vmmshare_region** region,
                       vmmshare_error** error);
// Gives everything back, addresses too. But as long as it is set for PyTorch
// (vmmshare_torch_set_region()), or that has not freed all that the hooks took of it
// (hooks.h), all of it stays.
VMMSHARE_API void vmmshare_region_close(vmmshare_region* region);

// Memory of its own for each call, `size` rounded up to the granularity (2 MiB on
// current devices). FAILED_PRECONDITION while the region is released.
VMMSHARE_API vmmshare_status vmmshare_region_allocate(vmmshare_region* region,
                                                      uint64_t size,
                                                      uint64_t* address,
                                                      vmmshare_error** error);
// Also while the region is released. NOT_FOUND when no allocation begins there.
VMMSHARE_API vmmshare_status vmmshare_region_free(vmmshare_region* region,
                                                  uint64_t address,
                                                  vmmshare_error** error);
// Copies all contents to pinned memory of the host, unless `flags` is
// VMMSHARE_KEEP_NOTHING, and gives all memory back to the device; or fails, and
// nothing has changed: but where the driver fails to unmap, that is told, and all of
// it is released. The addresses stay reserved.
//   RESOURCE_EXHAUSTED   the host has too little memory
//   FAILED_PRECONDITION  it is released; or vmmshare_torch_set_region() has set it
// All work that uses the memory must have ended.
VMMSHARE_API vmmshare_status vmmshare_region_release(vmmshare_region* region,
                                                     uint32_t flags,
                                                     vmmshare_error** error);
// Makes all memory at the same addresses, with the contents that were kept; or
// fails, and it is released as before. What has VMMSHARE_KEEP_NOTHING let go of has
// any contents.
//   RESOURCE_EXHAUSTED   not all of it fits
//   FAILED_PRECONDITION  it is not released
VMMSHARE_API vmmshare_status vmmshare_region_restore(vmmshare_region* region,
                                                     vmmshare_error** error);

typedef struct vmmshare_region_statistics {
  uint64_t struct_size;
  uint64_t allocations;  // That are not freed.
  uint64_t bytes;        // Of these, whether or not they are there.
  uint64_t kept;         // Of these, bytes in pinned memory of the host now.
  uint64_t is_released;  // 1 while nothing is there.
} vmmshare_region_statistics;
VMMSHARE_API vmmshare_status vmmshare_region_get_statistics(
    const vmmshare_region* region, vmmshare_region_statistics* statistics,
    vmmshare_error** error);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // VMMSHARE_VMM_C_RESTORABLE_H_
