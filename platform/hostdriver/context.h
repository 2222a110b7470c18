// Primary contexts and each thread's stack of current ones.
#ifndef VMMSHARE_PLATFORM_HOSTDRIVER_CONTEXT_H_
#define VMMSHARE_PLATFORM_HOSTDRIVER_CONTEXT_H_

#include <memory>

#include "platform/hostdriver/state.h"

namespace vmm::hostdriver {

// The calling thread's context, for a call that needs one. INVALID_CONTEXT
// when there is none, CONTEXT_IS_DESTROYED after its last release, otherwise
// its sticky error if it has one. REQUIRES: the lock is held.
CUresult CurrentContext(State& state, std::shared_ptr<Context>* context);

// The ordinal of the calling thread's context; `otherwise` when it has none.
// REQUIRES: the lock is held.
int CurrentDeviceOr(State& state, int otherwise);

}  // namespace vmm::hostdriver

#endif  // VMMSHARE_PLATFORM_HOSTDRIVER_CONTEXT_H_
