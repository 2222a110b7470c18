// A pool as the allocator of PyTorch and CuPy: symbols of the signatures that
// they load from a library, and what goes with them.
//
// The hooks of PyTorch (CUDAPluggableAllocator) are told a device and no pool,
// so a pool is set for each device first. What was allocated goes back to the
// pool from which it came, and keeps it alive until then. Tickets for tensors in
// it: vmmshare_tickets_around().
//
// A forked child has the pools and regions that it sets itself. As long as it has
// set none, what its parent set is refused there, whatever the parent's threads
// were doing: vmmshare_hooks_last_error() says so.
#ifndef VMMSHARE_VMM_C_HOOKS_H_
#define VMMSHARE_VMM_C_HOOKS_H_

#include <stddef.h>
#include <stdint.h>

#include "vmm/c/base.h"
#include "vmm/c/pool.h"
#include "vmm/c/restorable.h"

#ifdef __cplusplus
extern "C" {
#endif

// From now on vmmshare_torch_alloc() takes memory of `device`, an ordinal, from
// `pool`; NULL: it fails, as it does before. The pool may be closed afterwards.
VMMSHARE_API vmmshare_status vmmshare_torch_set_pool(int32_t device,
                                                     vmmshare_pool* pool,
                                                     vmmshare_error** error);
// May be called by any thread. Allocating returns NULL when there is no memory, or no
// pool for the device: vmmshare_hooks_last_error() says which.
//
// Freeing waits, without end and as cudaFree() does, until the GPU has done what is
// then on any stream of the device's primary context; no capture is lost by that.
// Where the driver refuses that wait the memory stays allocated, and may be freed
// again: vmmshare_hooks_last_error() says why.
VMMSHARE_API void* vmmshare_torch_alloc(size_t size, int device, void* stream);
VMMSHARE_API void vmmshare_torch_free(void* pointer, size_t size, int device,
                                      void* stream);

// The same for memory that is released and restored (restorable.h): from now on
// vmmshare_torch_region_alloc() takes memory of `device` from `region`, until this
// is called with NULL. What was allocated goes back to the region from which it
// came, and keeps it alive until then.
//   FAILED_PRECONDITION  a region is set for the device: PyTorch does not say for
//                        which it asks; or `region` is released, or being
//                        released by another thread
//   INVALID_ARGUMENT     it is of another device
VMMSHARE_API vmmshare_status vmmshare_torch_set_region(int32_t device,
                                                       vmmshare_region* region,
                                                       vmmshare_error** error);
// As vmmshare_torch_alloc() and vmmshare_torch_free(). What is freed goes back to
// the device, after all of the device's work; the call waits for it. While
// `stream` is captured into a graph nothing is freed (FAILED_PRECONDITION): it is
// the region's until it is freed again. The captures of others stay whole.
VMMSHARE_API void* vmmshare_torch_region_alloc(size_t size, int device,
                                               void* stream);
VMMSHARE_API void vmmshare_torch_region_free(void* pointer, size_t size,
                                             int device, void* stream);

// CuPy (CFunctionAllocator): `param` is the vmmshare_pool, which stays open
// until all is freed. NULL when there is none, or for another device than the
// pool's. Freeing waits as that of vmmshare_torch_free().
VMMSHARE_API void* vmmshare_cupy_malloc(void* param, size_t size, int device);
VMMSHARE_API void vmmshare_cupy_free(void* param, void* pointer, int device);

// Why a hook failed last, in any thread: the same failure is told once. OK when
// none has since.
VMMSHARE_API vmmshare_status vmmshare_hooks_last_error(vmmshare_error** error);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // VMMSHARE_VMM_C_HOOKS_H_
