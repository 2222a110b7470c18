// Physical memory: what cuMemCreate and cuMemImportFromShareableHandle make.
#ifndef VMMSHARE_PLATFORM_HOSTDRIVER_PHYSICAL_MEMORY_H_
#define VMMSHARE_PLATFORM_HOSTDRIVER_PHYSICAL_MEMORY_H_

#include <memory>

#include "platform/hostdriver/state.h"

namespace vmm::hostdriver {

// All of these REQUIRE that the lock is held.

// Makes memory on the visible device `ordinal`, within its budget.
CUresult CreateOnDevice(State& state, int ordinal, MemoryLabel::Kind kind,
                        bool rdma, unsigned char compression, std::size_t size,
                        std::shared_ptr<Memory>* memory,
                        const FabricPlace& fabric = {});

// Makes memory of the host of `kind`, whose location is the caller's to set.
CUresult CreateOnHost(const State& state, MemoryLabel::Kind kind,
                      std::size_t size, std::shared_ptr<Memory>* memory);

// Gives the memory its handle and a first reference.
CUmemGenericAllocationHandle Register(State& state,
                                      const std::shared_ptr<Memory>& memory);
// Sets where labelled memory is, as this process sees it.
void Locate(const State& state, Memory* memory);

// Memory of another driver, which closes `opened` in the end. Null, and it is
// closed, if it is of another machine.
std::shared_ptr<Memory> AdoptMemory(const State& state,
                                    const OpenedMemory& opened);
// The same for memory of any machine.
std::shared_ptr<Memory> AdoptOfAnyMachine(const State& state,
                                          const OpenedMemory& opened);

// The live handle `handle`. Null for 0; stops on any other value.
std::shared_ptr<Memory> FindMemory(State& state, const char* call,
                                   CUmemGenericAllocationHandle handle);

// Forgets the memory if neither a reference nor a mapping is left.
void DropIfUnused(State& state, const std::shared_ptr<Memory>& memory);

// The memory's bytes; null when the system cannot map them.
std::shared_ptr<Shadow> ShadowOf(Memory& memory);

}  // namespace vmm::hostdriver

#endif  // VMMSHARE_PLATFORM_HOSTDRIVER_PHYSICAL_MEMORY_H_
