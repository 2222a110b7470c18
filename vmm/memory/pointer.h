// What kind of memory a pointer belongs to, and whether it can be shared.
//
// For memory that somebody else allocated: PyTorch, JAX, cudaMalloc. The VMM
// calls do not take cudaMalloc's memory and legacy IPC does not take VMM's,
// and a wrong guess leaves an error behind that surfaces in somebody else's
// call. Asking leaves none.
#ifndef VMMSHARE_VMM_MEMORY_POINTER_H_
#define VMMSHARE_VMM_MEMORY_POINTER_H_

#include <cuda.h>

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "platform/cuda/driver.h"
#include "vmm/memory/device.h"
#include "vmm/memory/handle_kind.h"
#include "vmm/memory/location.h"
#include "vmm/memory/memory_id.h"
#include "vmm/memory/physical_memory.h"
#include "vmm/memory/shareable.h"

namespace vmm {

enum class PointerKind {
  kNotCuda,      // The driver does not know it: plain host memory, or unmapped.
  kVmm,          // cuMemCreate: shareable if it was created so.
  kPool,         // cuMemAllocAsync: shareable only through its pool.
  kDeviceAlloc,  // cuMemAlloc, cudaMalloc: shareable only by legacy IPC.
  kManaged,      // cuMemAllocManaged: not shareable.
  kPinnedHost,   // cuMemHostAlloc, cuMemHostRegister: not shareable.
};

absl::string_view NameOf(PointerKind kind);

struct PointerInfo {
  PointerKind kind = PointerKind::kNotCuda;
  // For kVmm: the kinds as which it can be exported; none if it was created
  // private or was imported.
  HandleKindSet kinds;
  // For kVmm: where it lives, as the driver says, which can be relied on for
  // what another process has made. On the host, the NUMA node; else the ordinal
  // of the device, unless this process does not see that.
  std::optional<int> host_numa_node;
  std::optional<int> device_ordinal;
  // The range reserved or allocated around it, in bytes; 0 for kNotCuda.
  CUdeviceptr range_base = 0;
  std::uint64_t range_size = 0;
  // Whether it can be shared with AdoptedMemory and, if not, what to do.
  bool adoptable = false;
  std::string advice;
};

// Looks at any address; needs no context and disturbs nothing. Fails only as
// the driver's look-up does.
absl::StatusOr<PointerInfo> Classify(const platform::Driver& driver,
                                     CUdeviceptr pointer);

// VMM memory that another part of this process allocated and mapped, to be
// shared from here. Holds the memory (not its mapping) while it lives.
// Move-only; const calls are thread-safe.
class AdoptedMemory {
 public:
  // Adopts the chunks that hold [pointer, pointer + size). Several chunks side
  // by side must have the same size, but the last may be smaller.
  //   FAILED_PRECONDITION  memory of another kind (the message says which and
  //                        what to do), unequal chunks, or no current context
  //                        (cuMemGetAddressRange needs one, measured)
  //   INVALID_ARGUMENT     size 0, or the range leaves the mapped memory
  static absl::StatusOr<AdoptedMemory> Adopt(const platform::Driver& driver,
                                             CUdeviceptr pointer,
                                             std::uint64_t size);

  // Bytes from the beginning of the shared memory to the pointer: the importer
  // finds it at ImportedAllocation::address() + offset().
  std::uint64_t offset() const { return offset_; }
  // Bytes shared: whole chunks, which may be more than was asked for.
  std::uint64_t size() const { return memory_.size(); }
  Shareable shareable() const;

 private:
  AdoptedMemory(Device device, PhysicalMemory memory, MemoryId id,
                std::uint64_t offset)
      : device_(std::move(device)),
        where_(*memory.where()),
        memory_(std::move(memory)),
        id_(id),
        offset_(offset) {}

  Device device_;
  Location where_;
  PhysicalMemory memory_;
  MemoryId id_;
  std::uint64_t offset_;
};

}  // namespace vmm

#endif  // VMMSHARE_VMM_MEMORY_POINTER_H_
