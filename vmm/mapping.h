// Mapping: physical memory at an address.
//
// A Mapping keeps both its address range and its memory alive, maps all chunks
// side by side, and unmaps them when it is destroyed. Unmapping is not ordered
// after work on any stream: the memory vanishes from under kernels that still
// run. Synchronise first, or hand the owner to a RetireQueue (retire.h).
#ifndef VMMSHARE_VMM_MAPPING_H_
#define VMMSHARE_VMM_MAPPING_H_

#include <cuda.h>

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "vmm/address_range.h"
#include "vmm/location.h"
#include "vmm/physical_memory.h"

namespace vmm {

// Move-only; const calls are thread-safe.
class Mapping {
 public:
  // Maps all of `memory` at `offset` into `range`. Nobody has access yet.
  // INVALID_ARGUMENT when it does not fit there or something is mapped there;
  // otherwise as cuMemMap answers. On failure nothing stays mapped.
  static absl::StatusOr<Mapping> Map(
      std::shared_ptr<const AddressRange> range, std::uint64_t offset,
      std::shared_ptr<const PhysicalMemory> memory);

  Mapping(Mapping&& other) noexcept = default;
  Mapping& operator=(Mapping&& other) noexcept;
  // Unmaps; a failure is reported, since nobody can be told.
  ~Mapping();

  // Gives and takes access, all of `grants` in one driver call (the costly one
  // of a mapping: 0.04 ms on the memory's own device, 1 to 10 ms on a peer).
  // Peer access is checked first: FAILED_PRECONDITION names the pair without.
  // Who is not named keeps what he had.
  absl::Status SetAccess(absl::Span<const AccessGrant> grants);

  // Unmaps now. The mapping is gone whatever the answer: an answer of "failed"
  // is not tried again.
  absl::Status Unmap() &&;

  CUdeviceptr address() const { return range_->base() + offset_; }
  std::uint64_t size() const { return memory_->size(); }

 private:
  Mapping(std::shared_ptr<const AddressRange> range, std::uint64_t offset,
          std::shared_ptr<const PhysicalMemory> memory)
      : range_(std::move(range)), offset_(offset), memory_(std::move(memory)) {}

  absl::Status UnmapFirst(std::uint64_t bytes);

  std::shared_ptr<const AddressRange> range_;  // Null once moved from.
  std::uint64_t offset_;
  std::shared_ptr<const PhysicalMemory> memory_;
};

}  // namespace vmm

#endif  // VMMSHARE_VMM_MAPPING_H_
