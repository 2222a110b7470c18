// vmmshare for C99 and for whoever calls C: share GPU memory between processes.
//
// Nothing of CUDA is needed to compile or link this; base.h has what is common
// to all calls. The library is libvmmshare.so.1.
#ifndef VMMSHARE_VMM_C_VMMSHARE_H_
#define VMMSHARE_VMM_C_VMMSHARE_H_

#include "vmm/c/base.h"
#include "vmm/c/doctor.h"
#include "vmm/c/driver.h"
#include "vmm/c/fence.h"
#include "vmm/c/hooks.h"
#include "vmm/c/keeper.h"
#include "vmm/c/memory.h"
#include "vmm/c/pool.h"
#include "vmm/c/restorable.h"
#include "vmm/c/ring.h"
#include "vmm/c/safetensors.h"
#include "vmm/c/share.h"
#include "vmm/c/symmetric.h"
#include "vmm/c/weights.h"

#endif  // VMMSHARE_VMM_C_VMMSHARE_H_
