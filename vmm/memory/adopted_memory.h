// AdoptedMemory: memory that another part of this process allocated, to be shared
// from here: PyTorch, CuPy, NCCL, cudaMalloc().
#ifndef VMMSHARE_VMM_MEMORY_ADOPTED_MEMORY_H_
#define VMMSHARE_VMM_MEMORY_ADOPTED_MEMORY_H_

#include <cuda.h>

#include <cstdint>
#include <string>
#include <utility>
#include <variant>

#include "absl/status/statusor.h"
#include "platform/cuda/driver.h"
#include "vmm/memory/device.h"
#include "vmm/memory/driver_block.h"
#include "vmm/memory/handle_kind.h"
#include "vmm/memory/location.h"
#include "vmm/memory/memory_id.h"
#include "vmm/memory/physical_memory.h"
#include "vmm/memory/shareable.h"

namespace vmm {

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
  // the one allocation that holds it.
  //   FAILED_PRECONDITION  memory of another kind, or of one that is not accepted
  //                        (the message says which and what to do), unequal
  //                        chunks, or no current context (cuMemGetAddressRange
  //                        needs one, measured)
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
