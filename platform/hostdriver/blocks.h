// cuMemAlloc, cuMemHostAlloc and cuMemAllocManaged.
#ifndef VMMSHARE_PLATFORM_HOSTDRIVER_BLOCKS_H_
#define VMMSHARE_PLATFORM_HOSTDRIVER_BLOCKS_H_

#include "platform/hostdriver/state.h"

namespace vmm::hostdriver {

// Whether cuMemAlloc made the block in this process.
bool IsOwnDeviceBlock(const Block& block);
// Whether cuMemHostAlloc did.
bool IsHostsAlone(const Block& block);

// Frees what was allocated or opened in `context`. REQUIRES: the lock is held.
void FreeBlocksOf(State& state, const Context& context);

}  // namespace vmm::hostdriver

#endif  // VMMSHARE_PLATFORM_HOSTDRIVER_BLOCKS_H_
