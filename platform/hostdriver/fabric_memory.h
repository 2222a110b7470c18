// Fabric handles: who may make them, and what they lead to.
#ifndef VMMSHARE_PLATFORM_HOSTDRIVER_FABRIC_MEMORY_H_
#define VMMSHARE_PLATFORM_HOSTDRIVER_FABRIC_MEMORY_H_

#include <memory>

#include "platform/hostdriver/state.h"

namespace vmm::hostdriver {

// All of these REQUIRE that the lock is held.

// Whether memory with fabric handles may be created at `location`; then what
// its label has to say. CUDA_ERROR_NOT_PERMITTED where the device has joined no
// cluster, no channel can be opened, or the daemon does not run.
CUresult CheckFabric(const State& state, const CUmemLocation& location,
                     FabricPlace* place);

// Writes the handle of `memory`, which is of kFabric and not imported.
CUresult ExportFabric(const State& state, const Memory& memory,
                      void* shareable);

// What `shareable` leads to, any 64 bytes, not yet registered.
CUresult ImportFabric(const State& state, const void* shareable,
                      std::shared_ptr<Memory>* memory);

// Whether the visible device may map `memory`, so far as the fabric decides it.
bool ReachesOverFabric(const State& state, const Memory& memory, int ordinal);

}  // namespace vmm::hostdriver

#endif  // VMMSHARE_PLATFORM_HOSTDRIVER_FABRIC_MEMORY_H_
