// All of vmmshare: share GPU memory between processes.
//
// Allocate (allocation.h), send over a channel (transfer.h) or publish as a
// string (endpoint.h) or as bytes for another node (fabric_ticket.h), import
// (imported_allocation.h). Many small blocks: pool.h and imported_pool.h.
// Memory that outlives its creator: keeper.h. The ranks of a job:
// job/handshake.h and job/symmetric.h. Begin with
// platform::Driver::LoadSystem() and Device::ByOrdinal().
#ifndef VMMSHARE_VMM_VMM_H_
#define VMMSHARE_VMM_VMM_H_

#include "platform/channel.h"
#include "platform/driver.h"
#include "vmm/allocation.h"
#include "vmm/barrier.h"
#include "vmm/device.h"
#include "vmm/endpoint.h"
#include "vmm/fabric_ticket.h"
#include "vmm/fence.h"
#include "vmm/fence_array.h"
#include "vmm/fence_pool.h"
#include "vmm/fence_ticket.h"
#include "vmm/handle_kind.h"
#include "vmm/imported_allocation.h"
#include "vmm/imported_pool.h"
#include "vmm/ipc_event.h"
#include "vmm/job/handshake.h"
#include "vmm/job/symmetric.h"
#include "vmm/keeper.h"
#include "vmm/location.h"
#include "vmm/pointer.h"
#include "vmm/pool.h"
#include "vmm/pool_ticket.h"
#include "vmm/primary_context.h"
#include "vmm/retire.h"
#include "vmm/ring.h"
#include "vmm/ticket.h"
#include "vmm/ticket_string.h"
#include "vmm/transfer.h"

#endif  // VMMSHARE_VMM_VMM_H_
