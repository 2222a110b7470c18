// cuMemAlloc, cuMemHostAlloc and cuMemAllocManaged.
#ifndef VMMSHARE_PLATFORM_HOSTDRIVER_BLOCKS_H_
#define VMMSHARE_PLATFORM_HOSTDRIVER_BLOCKS_H_

#include <map>

#include "platform/hostdriver/state.h"

namespace vmm::hostdriver {

// Whether cuMemAlloc made the block in this process.
bool IsOwnDeviceBlock(const Block& block);
// Whether cuMemHostAlloc did.
bool IsHostsAlone(const Block& block);

// These REQUIRE that the lock is held.

// Frees `block`, which is no pool's; returns the one after it.
std::map<CUdeviceptr, Block>::iterator FreeBlock(
    State& state, std::map<CUdeviceptr, Block>::iterator block);
// Frees what was allocated or opened in `context`.
void FreeBlocksOf(State& state, const Context& context);

}  // namespace vmm::hostdriver

#endif  // VMMSHARE_PLATFORM_HOSTDRIVER_BLOCKS_H_
