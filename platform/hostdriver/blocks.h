// cuMemAlloc, cuMemHostAlloc and cuMemAllocManaged.
#ifndef VMMSHARE_PLATFORM_HOSTDRIVER_BLOCKS_H_
#define VMMSHARE_PLATFORM_HOSTDRIVER_BLOCKS_H_

#include <cstddef>
#include <memory>

#include "platform/hostdriver/state.h"

namespace vmm::hostdriver {

// Whether cuMemAlloc made the block in this process.
bool IsOwnDeviceBlock(const Block& block);
// Whether cuMemHostAlloc did.
bool IsHostsAlone(const Block& block);

// Makes a block that the CPU can access at its address: pinned or, with an ordinal
// of a device in `managed_on` and not -1, managed. REQUIRES: the lock is held.
CUresult MakeHostBlock(State& state, const std::shared_ptr<Context>& context,
                       std::size_t size, int managed_on, CUdeviceptr* address);

// Frees what was allocated or opened in `context`. REQUIRES: the lock is held.
void FreeBlocksOf(State& state, const Context& context);

}  // namespace vmm::hostdriver

#endif  // VMMSHARE_PLATFORM_HOSTDRIVER_BLOCKS_H_
