// Contexts, and each thread's stack of current ones.
#ifndef VMMSHARE_PLATFORM_HOSTDRIVER_CONTEXT_H_
#define VMMSHARE_PLATFORM_HOSTDRIVER_CONTEXT_H_

#include <memory>

#include "platform/hostdriver/state.h"

namespace vmm::hostdriver {

// The calling thread's context, for a call that needs one. INVALID_CONTEXT
// when there is none, CONTEXT_IS_DESTROYED after its last release or a reset, otherwise
// its sticky error if it has one. REQUIRES: the lock is held.
CUresult CurrentContext(State& state, std::shared_ptr<Context>* context);

// The ordinal of the calling thread's context; `otherwise` when it has none.
// REQUIRES: the lock is held.
int CurrentDeviceOr(State& state, int otherwise);

// The live context `id`, or null if it was destroyed. Stops on other values.
// REQUIRES: the lock is held.
std::shared_ptr<Context> FindContext(State& state, const char* call,
                                     CUcontext id);

// Ends the context: its streams abandon their work; its blocks are freed, its
// modules unloaded. REQUIRES: the lock is held.
void DestroyContext(State& state, const std::shared_ptr<Context>& context);

// Makes `id` the calling thread's current context, above the one it has. False
// when there is no room.
bool PushContext(CUcontext id);
// Undoes that where `id` is the current one.
void PopContext(CUcontext id);

}  // namespace vmm::hostdriver

#endif  // VMMSHARE_PLATFORM_HOSTDRIVER_CONTEXT_H_
