// A copy that work of a stream makes.
#ifndef VMMSHARE_PLATFORM_HOSTDRIVER_COPIES_H_
#define VMMSHARE_PLATFORM_HOSTDRIVER_COPIES_H_

#include <cstddef>

#include "platform/hostdriver/state.h"

namespace vmm::hostdriver {

// `size` bytes, more than 0. False where the device may not go. REQUIRES: the
// lock is held; it is let go of meanwhile.
bool CopyNow(State& state, Lock& held, int device, CUdeviceptr to,
             CUdeviceptr from, std::size_t size);

}  // namespace vmm::hostdriver

#endif  // VMMSHARE_PLATFORM_HOSTDRIVER_COPIES_H_
