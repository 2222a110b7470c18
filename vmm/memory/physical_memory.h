// PhysicalMemory: memory without an address, created or imported.
//
// One or several chunks, each one driver handle (cuMemCreate). All chunks have
// the same size, but the last may be smaller. The driver counts references
// across processes: the memory lives while any process holds a handle, a
// mapping or an exported descriptor of it, even after its creator has died
// (measured).
//
// Most programs use Allocation, which adds the address.
#ifndef VMMSHARE_VMM_MEMORY_PHYSICAL_MEMORY_H_
#define VMMSHARE_VMM_MEMORY_PHYSICAL_MEMORY_H_

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "platform/base/owned.h"
#include "platform/cuda/driver.h"
#include "platform/os/process.h"
#include "vmm/memory/device.h"
#include "vmm/memory/handle_kind.h"

namespace vmm {

// A driver handle together with the driver that must release it.
struct MemoryHandle {
  std::optional<platform::Driver> driver;
  CUmemGenericAllocationHandle handle = 0;
};

struct MemoryHandleTraits {
  using Value = MemoryHandle;
  static Value Nothing() { return {}; }
  static bool Holds(const Value& value) { return value.handle != 0; }
  // A failure is reported, never retried: an answer of "failed" does not say
  // that the reference is still there, and a second release of it would be
  // undefined.
  static void Close(const Value& value);
};

// Owns one reference to one chunk.
using OwnedMemoryHandle = platform::Owned<MemoryHandleTraits>;

// A reference to the chunk that is mapped at `address`; empty where no VMM memory
// is. Errors as the driver answers.
absl::StatusOr<OwnedMemoryHandle> RetainMemoryAt(const platform::Driver& driver,
                                                 CUdeviceptr address);

// One a chunk. Most memory is one chunk, which then needs no heap of its own:
// releasing touches less memory, which is cold after the driver's work.
using MemoryHandles = absl::InlinedVector<OwnedMemoryHandle, 1>;

// How `size` bytes are cut into chunks. A value.
struct ChunkLayout {
  std::uint64_t size = 0;        // Of all chunks.
  std::uint64_t chunk_size = 0;  // Of every chunk but the last.

  // Written so that no value of the two overflows.
  std::size_t count() const {
    return size == 0 ? 0
                     : static_cast<std::size_t>((size - 1) / chunk_size + 1);
  }
  // Bytes of chunk `index`.
  std::uint64_t SizeOf(std::size_t index) const {
    return index + 1 < count() ? chunk_size : size - (count() - 1) * chunk_size;
  }
  friend bool operator==(const ChunkLayout&, const ChunkLayout&) = default;
};

// The layout for `size` bytes in chunks of at most `max_chunk_size` (0: one
// chunk), all multiples of `granularity`. INVALID_ARGUMENT for size 0, for a
// maximum under the granularity, and where rounding up would overflow.
absl::StatusOr<ChunkLayout> LayOut(std::uint64_t size,
                                   std::uint64_t max_chunk_size,
                                   std::uint64_t granularity);

// Whether network cards and other PCIe devices are to read and write memory by
// themselves (GPUDirect RDMA), which the driver must be told when it is made.
enum class Rdma {
  kOff,      // Not asked for.
  kTry,      // Asked for; memory without it where the machine refuses.
  kRequire,  // Asked for; an error where the machine refuses.
};

// Move-only; const calls are thread-safe.
class PhysicalMemory {
 public:
  // The granularity of memory at `where` that can be shared as `kinds`, with
  // the RDMA flag if `rdma`.
  static absl::StatusOr<std::uint64_t> Granularity(
      const platform::Driver& driver, const Location& where,
      HandleKindSet kinds, bool rdma = false);

  // Creates memory, zeroed by the driver (observed, not documented).
  // RESOURCE_EXHAUSTED when it does not fit; PERMISSION_DENIED and others as
  // the driver answers. On failure nothing stays allocated. `users`:
  // SharePolicy::AndUsers(); INVALID_ARGUMENT when one is no SID. `rdma`: with
  // the flag gpuDirectRDMACapable, which is read back from every chunk;
  // FAILED_PRECONDITION when the driver made one without.
  static absl::StatusOr<PhysicalMemory> Create(
      const platform::Driver& driver, const Location& where,
      const ChunkLayout& layout, HandleKindSet kinds,
      const std::vector<platform::UserId>& users = {}, bool rdma = false);

  // Takes over handles that were imported or retained, one a chunk.
  // REQUIRES: as many handles as `layout` has chunks.
  static PhysicalMemory FromHandles(MemoryHandles handles,
                                    const ChunkLayout& layout,
                                    std::optional<Location> where,
                                    HandleKindSet kinds);

  const ChunkLayout& layout() const { return layout_; }
  std::uint64_t size() const { return layout_.size; }
  CUmemGenericAllocationHandle handle(std::size_t chunk) const {
    return handles_[chunk].get().handle;
  }
  // Where it lives; nullopt for imported memory of a device that this process
  // does not see.
  const std::optional<Location>& where() const { return where_; }
  // The kinds as which it can be exported; none for imported memory, which the
  // driver does not export again (measured).
  HandleKindSet kinds() const { return kinds_; }

  // Whether Create() made it with that flag: of other memory, which may have it,
  // no.
  bool made_for_rdma() const { return made_for_rdma_; }

  // Whether every chunk has the flag gpuDirectRDMACapable. Asks the driver
  // about each. Of imported memory it says no, whatever its owner gave it
  // (measured).
  absl::StatusOr<bool> IsRdmaCapable() const;

 private:
  PhysicalMemory(MemoryHandles handles, const ChunkLayout& layout,
                 std::optional<Location> where, HandleKindSet kinds);

  MemoryHandles handles_;
  ChunkLayout layout_;
  std::optional<Location> where_;
  HandleKindSet kinds_;
  bool made_for_rdma_ = false;
};

}  // namespace vmm

#endif  // VMMSHARE_VMM_MEMORY_PHYSICAL_MEMORY_H_
