// cuMemAlloc and cuMemHostAlloc.
#ifndef VMMSHARE_PLATFORM_HOSTDRIVER_BLOCKS_H_
#define VMMSHARE_PLATFORM_HOSTDRIVER_BLOCKS_H_

#include "platform/hostdriver/state.h"

namespace vmm::hostdriver {

// Frees what was allocated in `context`. REQUIRES: the lock is held.
void FreeBlocksOf(State& state, const Context& context);

}  // namespace vmm::hostdriver

#endif  // VMMSHARE_PLATFORM_HOSTDRIVER_BLOCKS_H_
