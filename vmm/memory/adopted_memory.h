// AdoptedMemory: memory that another part of this process allocated, to be shared
// from here: PyTorch, CuPy, NCCL, cudaMalloc(). Classify(): what kind of memory a
// pointer belongs to, and whether it can be shared.
//
// The VMM calls do not take cudaMalloc's memory and legacy IPC does not take
// VMM's, and a wrong guess leaves an error behind that surfaces in somebody
// else's call. Asking leaves none.
#ifndef VMMSHARE_VMM_MEMORY_ADOPTED_MEMORY_H_
#define VMMSHARE_VMM_MEMORY_ADOPTED_MEMORY_H_

#include <cuda.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "platform/cuda/driver.h"
#include "vmm/memory/device.h"
#include "vmm/memory/driver_block.h"
#include "vmm/memory/handle_kind.h"
#include "vmm/memory/physical_memory.h"
#include "vmm/memory/shareable.h"

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

// Looks at any address; needs no context and disturbs nothing, no capture of a
// stream either. Fails only as the driver's look-up does.
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

struct AdoptOptions {
  // The weaker kinds that the program accepts for memory which is not
  // cuMemCreate()'s: kLegacyIpc for cuMemAlloc()'s, kStreamPool for an exportable
  // pool's. driver_block.h says what is weaker. Others change nothing.
  HandleKindSet accept = {};
};

// Holds cuMemCreate()'s memory (not its mapping) while it lives. Of a weaker kind
// it holds nothing: keep that until all who opened it have closed it.
// Move-only; const calls are thread-safe.
class AdoptedMemory {
 public:
  // Adopts the chunks that hold [pointer, pointer + size). Several chunks side
  // by side must have the same size, but the last may be smaller. Of a weaker kind,
  // the one allocation that holds it. Where no context of a device that may access
  // the memory is current, the primary one of the memory's own is, for the length of
  // the call.
  //   FAILED_PRECONDITION  memory of another kind, or of one that is not accepted
  //                        (the message says which and what to do), unequal
  //                        chunks, or neither the current context's device nor
  //                        the memory's own may access it
  //   INVALID_ARGUMENT     size 0, or the range leaves the mapped memory
  static absl::StatusOr<AdoptedMemory> Adopt(const platform::Driver& driver,
                                             CUdeviceptr pointer,
                                             std::uint64_t size,
                                             const AdoptOptions& options = {});

  // Bytes from the beginning of the shared memory to the pointer: the importer
  // finds it at ImportedAllocation::address() + offset().
  std::uint64_t offset() const { return offset_; }
  // Bytes shared: whole chunks, or a whole allocation, which may be more than was
  // asked for.
  std::uint64_t size() const;
  Shareable shareable() const;
  // Null for cuMemCreate()'s memory; else what it got instead.
  const DriverBlock* block() const {
    return std::get_if<DriverBlock>(&memory_);
  }
  // What is weaker about it than about cuMemCreate()'s memory, for people; empty
  // of that.
  std::string weakness() const;
  // What whoever opens it can reach, with all that lies there: of cuMemCreate()'s
  // memory its whole chunks. Size 0: what was asked for, and no more.
  AddressSpan disclosed() const { return disclosed_; }

 private:
  using Memory = std::variant<PhysicalMemory, DriverBlock>;
  AdoptedMemory(Device device, Location where, Memory memory, MemoryId id,
                std::uint64_t offset, AddressSpan disclosed)
      : device_(std::move(device)),
        where_(std::move(where)),
        memory_(std::move(memory)),
        id_(id),
        offset_(offset),
        disclosed_(disclosed) {}
  static absl::StatusOr<AdoptedMemory> AdoptBlock(
      const platform::Driver& driver, CUdeviceptr pointer, std::uint64_t size,
      HandleKind kind);

  Device device_;
  Location where_;
  Memory memory_;
  MemoryId id_;
  std::uint64_t offset_;
  AddressSpan disclosed_;
};

}  // namespace vmm

#endif  // VMMSHARE_VMM_MEMORY_ADOPTED_MEMORY_H_
