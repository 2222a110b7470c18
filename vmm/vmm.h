// What most programs need of vmmshare: memory that one process hands to
// another, pools of blocks, and fences.
//
// Allocate (memory/allocation.h), send over a channel (share/transfer.h) or
// publish as a string (share/endpoint.h), import (share/imported_allocation.h).
// Many small blocks: pool/pool.h and pool/imported_pool.h. Begin with
// platform::Driver::LoadSystem() and Device::ByOrdinal().
//
// To be included by who wants them: queue/ring.h, job/handshake.h,
// job/symmetric.h, job/barrier.h, keeper/keeper.h, weights/tensor_set.h,
// sync/ipc_event.h, sync/fence_array.h, share/raw_handle.h, share/restorable.h,
// share/retire.h, memory/restorable_region.h.
#ifndef VMMSHARE_VMM_VMM_H_
#define VMMSHARE_VMM_VMM_H_

#include "platform/cuda/driver.h"
#include "platform/ipc/channel.h"
#include "vmm/memory/adopted_memory.h"
#include "vmm/memory/allocation.h"
#include "vmm/memory/device.h"
#include "vmm/memory/dma_buf.h"
#include "vmm/memory/handle_kind.h"
#include "vmm/pool/imported_pool.h"
#include "vmm/pool/pool.h"
#include "vmm/pool/pool_ticket.h"
#include "vmm/share/endpoint.h"
#include "vmm/share/imported_allocation.h"
#include "vmm/share/ticket.h"
#include "vmm/share/transfer.h"
#include "vmm/sync/fence.h"
#include "vmm/sync/fence_pool.h"

#endif  // VMMSHARE_VMM_VMM_H_
