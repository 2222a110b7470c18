// Mapping: physical memory at an address.
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

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "platform/base/owned.h"
#include "platform/cuda/driver.h"
#include "vmm/memory/address_range.h"
#include "vmm/memory/location.h"
#include "vmm/memory/physical_memory.h"

namespace vmm {

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

}  // namespace vmm

#endif  // VMMSHARE_VMM_MEMORY_MAPPING_H_
