// SymmetricMemory: the same amount of memory of every rank's GPU, mapped by
// all.
//
//   absl::StatusOr<SymmetricMemory> heap =
//       SymmetricMemory::Create(device, exchange, {.size = 1 << 30}, deadline);
//   CUdeviceptr mine = heap->address(heap->rank());
//   CUdeviceptr right = heap->address((heap->rank() + 1) % heap->ranks());
//   // All in one range: heap->base() + rank * heap->stride() is rank's memory.
//
// What NVSHMEM, NCCL and PyTorch call symmetric memory, as a library call. The
// memory of a peer stays mapped while this object lives, even when the peer
// has gone.
#ifndef VMMSHARE_VMM_JOB_SYMMETRIC_H_
#define VMMSHARE_VMM_JOB_SYMMETRIC_H_

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fabric/exchange.h"
#include "platform/os/deadline.h"
#include "vmm/job/offer.h"
#include "vmm/memory/address_range.h"
#include "vmm/memory/allocation.h"
#include "vmm/memory/device.h"
#include "vmm/memory/handle_kind.h"
#include "vmm/memory/location.h"
#include "vmm/memory/mapping.h"
#include "vmm/share/imported_allocation.h"

namespace vmm::job {

struct SymmetricOptions {
  // Bytes a rank, the same on all. Rounded up to the granularity.
  std::uint64_t size = 0;
  SharePolicy sharing = JobSharing();
  // All ranks' memory in one address range, at equal distances. The addresses
  // differ from rank to rank.
  bool one_range = true;
  // Of this rank's GPU to the memory of the others.
  Access access = Access::kReadWrite;
  JobOptions job = {};
};

// Move-only, thread-compatible. Destroying it is not ordered after work on any
// stream, here or on a peer: synchronise and meet first.
class SymmetricMemory {
 public:
  // Collective: every rank calls it with the same options. `device` is the
  // rank's GPU, or why it has none. One round of the exchange for the tickets,
  // one for the outcome. It succeeds on all ranks or on none, but for a rank
  // that is lost in the last round: the others then say so.
  //   INVALID_ARGUMENT     size 0, or not the same on every rank: names them
  //   FAILED_PRECONDITION  a rank of another version; no way between two ranks
  //   DEADLINE_EXCEEDED    a rank did not come: names it
  //   else                 what failed on the rank that the message names
  static absl::StatusOr<SymmetricMemory> Create(
      const absl::StatusOr<Device>& device, fabric::Exchange& exchange,
      const SymmetricOptions& options, Deadline deadline);

  SymmetricMemory(SymmetricMemory&&) = default;
  SymmetricMemory& operator=(SymmetricMemory&&) = delete;

  int rank() const { return rank_; }
  int ranks() const { return static_cast<int>(parts_.size()); }
  // Bytes of each rank's memory that were asked for.
  std::uint64_t size() const { return size_; }

  // Where this process has `rank`'s memory. REQUIRES: 0 <= rank < ranks().
  CUdeviceptr address(int rank) const { return parts_[rank].address; }
  // How it came here; nothing for this rank's own.
  std::optional<HandleKind> kind(int rank) const { return parts_[rank].kind; }

  // With one_range: address(r) is base() + r * stride(). Otherwise 0.
  CUdeviceptr base() const { return range_ == nullptr ? 0 : range_->base(); }
  std::uint64_t stride() const { return stride_; }

 private:
  class Builder;
  struct Part {
    CUdeviceptr address = 0;
    std::optional<HandleKind> kind;
    std::optional<ImportedAllocation> imported;
  };

  SymmetricMemory() = default;

  int rank_ = 0;
  std::uint64_t size_ = 0;
  std::uint64_t stride_ = 0;
  // Destroyed from the last to the first: unmapped, then the rest.
  std::shared_ptr<const AddressRange> range_;
  std::optional<Allocation> own_;
  OwnedMapping own_mapping_;  // In range_; else own_ is mapped by itself.
  std::vector<Part> parts_;
};

}  // namespace vmm::job

#endif  // VMMSHARE_VMM_JOB_SYMMETRIC_H_
