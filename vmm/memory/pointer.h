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
#include "vmm/memory/handle_kind.h"

namespace vmm {

enum class PointerKind {
  kNotCuda,      // The driver does not know it: plain host memory, or unmapped.
  kVmm,          // cuMemCreate: shareable if it was created so.
  kPool,         // cuMemAllocAsync: shareable only through its pool, if that
                 // was made exportable.
  kDeviceAlloc,  // cuMemAlloc, cudaMalloc: shareable only by legacy IPC.
  kManaged,      // cuMemAllocManaged: not shareable.
  kPinnedHost,   // cuMemHostAlloc, cuMemHostRegister: not shareable.
};

absl::string_view NameOf(PointerKind kind);

struct PointerInfo {
  PointerKind kind = PointerKind::kNotCuda;
  // The kinds as which it can be exported; none if it was created private or was
  // imported. Of kPool and kDeviceAlloc, a weaker one (driver_block.h).
  HandleKindSet kinds;
  // For kVmm: where it lives, as the driver says, which can be relied on for
  // what another process has made. On the host, the NUMA node; else the ordinal
  // of the device, unless this process does not see that.
  std::optional<int> host_numa_node;
  std::optional<int> device_ordinal;
  // The range reserved or allocated around it, in bytes; 0 for kNotCuda.
  CUdeviceptr range_base = 0;
  std::uint64_t range_size = 0;
  // Whether AdoptedMemory takes it without AdoptOptions and, if not, what to do.
  bool adoptable = false;
  std::string advice;
};

// Looks at any address; needs no context and disturbs nothing. Fails only as
// the driver's look-up does.
absl::StatusOr<PointerInfo> Classify(const platform::Driver& driver,
                                     CUdeviceptr pointer);

// The ordinal of a device whose kernels reach what is at `pointer`: of kVmm that
// on which it lives, if it may access it, else the first that may, which is how
// memory of another GPU is used, or of one that this process does not see; of the
// driver's other allocators that on which it was made or opened. Nothing where no
// device does. `info` is Classify()'s of `pointer`.
absl::StatusOr<std::optional<int>> ReachedFrom(const platform::Driver& driver,
                                               CUdeviceptr pointer,
                                               const PointerInfo& info);

}  // namespace vmm

#endif  // VMMSHARE_VMM_MEMORY_POINTER_H_
