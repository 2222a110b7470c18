// AddressRange and Mapping: addresses, and physical memory at them.
//
// Reserving costs a microsecond and no memory (16 TiB succeed on H100), so
// reserve what a buffer may grow to and map as it grows.
//
// A Mapping keeps both its address range and its memory alive, maps all chunks
// side by side, and unmaps them when it is destroyed. Unmapping is not ordered
// after work on any stream: the memory vanishes from under kernels that still
// run. Synchronise first, or hand the owner to a RetireQueue (retire.h).
#ifndef VMMSHARE_VMM_MEMORY_MAPPING_H_
#define VMMSHARE_VMM_MEMORY_MAPPING_H_

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "platform/base/owned.h"
#include "platform/cuda/driver.h"
#include "vmm/memory/device.h"
#include "vmm/memory/physical_memory.h"

namespace vmm {

struct ReservedRange {
  std::optional<platform::Driver> driver;
  CUdeviceptr base = 0;
  std::uint64_t size = 0;
};

struct ReservedRangeTraits {
  using Value = ReservedRange;
  static Value Nothing() { return {}; }
  static bool Holds(const Value& value) { return value.size != 0; }
  static void Close(const Value& value);
};

// Reserved device addresses. Move-only; const calls are thread-safe. Must
// outlive every Mapping in it; Mapping sees to that.
class AddressRange {
 public:
  // Reserves `size` bytes, a multiple of the device's granularity (2 MiB on
  // H100). `alignment` is 0 (the driver's) or a power of two. `hint` is the
  // wanted address or 0; the driver may choose another, and says nothing then
  // (measured): compare base(). INVALID_ARGUMENT for a size or alignment the
  // driver does not take; RESOURCE_EXHAUSTED when addresses run out.
  static absl::StatusOr<AddressRange> Reserve(const platform::Driver& driver,
                                              std::uint64_t size,
                                              std::uint64_t alignment = 0,
                                              CUdeviceptr hint = 0);

  CUdeviceptr base() const { return range_.get().base; }
  std::uint64_t size() const { return range_.get().size; }
  const platform::Driver& driver() const { return *range_.get().driver; }

 private:
  explicit AddressRange(ReservedRange range)
      : range_(platform::Owned<ReservedRangeTraits>::Adopt(std::move(range))) {}

  platform::Owned<ReservedRangeTraits> range_;
};

// Addresses at which memory is mapped, side by side.
struct MappedAddresses {
  std::optional<platform::Driver> driver;
  CUdeviceptr address = 0;
  std::uint64_t size = 0;
};

struct MappedAddressesTraits {
  using Value = MappedAddresses;
  static Value Nothing() { return {}; }
  static bool Holds(const Value& value) { return value.size != 0; }
  // Unmaps; a failure is reported, since nobody can be told.
  static void Close(const Value& value);
};

// Unmaps when it is destroyed. REQUIRES that the addresses stay reserved and
// the memory alive until then: Mapping sees to both.
using OwnedMapping = platform::Owned<MappedAddressesTraits>;

// Maps all chunks of `memory` from `address` on. Nobody has access yet. As
// cuMemMap reports; on failure nothing stays mapped.
absl::StatusOr<OwnedMapping> MapChunks(const platform::Driver& driver,
                                       CUdeviceptr address,
                                       const PhysicalMemory& memory);

// Unmaps now. Gone whatever the answer: a failure is not tried again.
absl::Status Unmap(OwnedMapping mapping);

// Gives and takes access to memory that lives at `where`, all of `grants` in
// one driver call. Peer access is checked first: FAILED_PRECONDITION names the
// pair without, unless this process does not see where the memory lives.
absl::Status SetAccess(const OwnedMapping& mapping,
                       const std::optional<Location>& where,
                       absl::Span<const AccessGrant> grants);

// Move-only; const calls are thread-safe.
class Mapping {
 public:
  // Maps all of `memory` at `offset` into `range`. Nobody has access yet.
  // INVALID_ARGUMENT when it does not fit there or something is mapped there;
  // otherwise as cuMemMap reports. On failure nothing stays mapped.
  static absl::StatusOr<Mapping> Map(
      std::shared_ptr<const AddressRange> range, std::uint64_t offset,
      std::shared_ptr<const PhysicalMemory> memory);

  Mapping(Mapping&&) noexcept = default;
  Mapping& operator=(Mapping&& other) noexcept;

  // Gives and takes access, all of `grants` in one driver call (the costly one
  // of a mapping: 0.04 ms on the memory's own device, 1 to 10 ms on a peer).
  // Peer access is checked first: FAILED_PRECONDITION names the pair without.
  // Who is not named keeps what he had.
  absl::Status SetAccess(absl::Span<const AccessGrant> grants);

  // Unmaps now. The mapping is gone whatever the answer: an answer of "failed"
  // is not tried again.
  absl::Status Unmap() &&;

  CUdeviceptr address() const { return mapped_.get().address; }
  std::uint64_t size() const { return mapped_.get().size; }

 private:
  Mapping(std::shared_ptr<const AddressRange> range,
          std::shared_ptr<const PhysicalMemory> memory, OwnedMapping mapped)
      : range_(std::move(range)),
        memory_(std::move(memory)),
        mapped_(std::move(mapped)) {}

  // Destroyed from the last to the first: unmapped before the others may go.
  std::shared_ptr<const AddressRange> range_;
  std::shared_ptr<const PhysicalMemory> memory_;
  OwnedMapping mapped_;
};

// A place within addresses that were reserved before. A value; it keeps them
// reserved.
struct Placement {
  std::shared_ptr<const AddressRange> range;
  std::uint64_t offset = 0;  // A multiple of the granularity.
};

// What Allocation and ImportedAllocation have in common: memory, the addresses
// it lives at, and who may access it there. The addresses stay reserved while
// the region lives, so that memory can be unmapped and mapped again at the same
// address. Internal: users see these two. Move-only, thread-compatible.
class MappedRegion {
 public:
  // Reserves addresses, maps `memory` there and sets access.
  static absl::StatusOr<MappedRegion> Create(
      const platform::Driver& driver, PhysicalMemory memory,
      std::uint64_t alignment, absl::Span<const AccessGrant> grants);
  // The same at `place`. INVALID_ARGUMENT when it does not fit there; as
  // cuMemMap reports when something is mapped there.
  static absl::StatusOr<MappedRegion> CreateAt(
      Placement place, PhysicalMemory memory,
      absl::Span<const AccessGrant> grants);

  MappedRegion(MappedRegion&&) noexcept = default;
  MappedRegion& operator=(MappedRegion&& other) noexcept;

  CUdeviceptr address() const { return address_; }
  std::uint64_t size() const { return size_; }
  bool is_mapped() const { return mapping_.has_value(); }
  // REQUIRES: has_memory().
  const PhysicalMemory& memory() const;
  bool has_memory() const { return memory_.has_value(); }
  // FAILED_PRECONDITION when it was dropped.
  absl::StatusOr<bool> IsRdmaCapable() const;

  absl::Status SetAccess(absl::Span<const AccessGrant> grants);
  absl::Status Unmap();
  absl::Status Remap();
  // The same, but that `writer` may read and write, whatever access it had. That
  // is remembered still: SetAccess() gives it again.
  absl::Status RemapToFill(const Location& writer);
  // What `who` was given last.
  Access AccessOf(const Location& who) const;
  // REQUIRES: !is_mapped(), and Replace: the same size.
  void DropMemory();
  void ReplaceMemory(PhysicalMemory memory);

 private:
  MappedRegion(PhysicalMemory memory, absl::Span<const AccessGrant> grants)
      : size_(memory.size()), memory_(std::move(memory)) {
    Remember(grants, grants_);
  }

  const AddressRange& range() const {
    return range_.has_value() ? *range_ : *within_;
  }

  // Each location once, with its last access.
  using Grants = absl::InlinedVector<AccessGrant, 1>;
  static void Remember(absl::Span<const AccessGrant> grants, Grants& in);
  absl::Status RemapWith(const Grants& grants);

  Grants grants_;  // Applied again by Remap().
  std::uint64_t size_;
  CUdeviceptr address_ = 0;  // In range().
  // Held by value, and destroyed from the last to the first: unmapped,
  // addresses freed, memory released.
  std::optional<PhysicalMemory> memory_;
  std::shared_ptr<const AddressRange> within_;  // Of a Placement; else
  std::optional<AddressRange> range_;           // its own.
  OwnedMapping mapping_;
};

}  // namespace vmm

#endif  // VMMSHARE_VMM_MEMORY_MAPPING_H_
