// SymmetricMemory: the same amount of memory of every rank's GPU, mapped by
// all. SymmetricHeap: which parts of it are in use, alike on every rank.
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
#include "vmm/job/handshake.h"
#include "vmm/memory/allocation.h"
#include "vmm/memory/device.h"
#include "vmm/memory/handle_kind.h"
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
  // one for the outcome; half of the time is for all ranks to come. Where the
  // exchange waits longer, as MPI does, the other half begins when they have. It
  // succeeds on all ranks or on none, but for the last round: a rank whose
  // deadline passes there fails, and others may succeed. Treat that as the end of
  // the job, or agree on the outcome by a round of your own.
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

// Which parts of symmetric memory are in use, alike on every rank and without a
// word between them.
//
//   SymmetricHeap heap(memory->size());
//   absl::StatusOr<std::uint64_t> at = heap.Allocate(64 << 20);  // every rank
//   CUdeviceptr right = memory->address(peer) + *at;
//   ...
//   absl::Status agreed = heap.CheckAgreed(exchange, deadline);
//
// Making symmetric memory takes milliseconds of the driver's and two rounds of
// the job's exchange. A program that needs buffers now and then makes it once
// and cuts them from it: every rank calls Allocate() and Free() with the same
// values in the same order, and so gets the same offsets, as with
// nvshmem_malloc().
//
// Arithmetic only: it calls no driver and touches no memory. Move-only,
// thread-compatible; with several threads the order of calls would differ from
// rank to rank.
class SymmetricHeap {
 public:
  // What offsets and sizes are rounded up to, bytes.
  static constexpr std::uint64_t kGranule = 256;
  // Bytes that it can have: just below 1 TiB.
  static constexpr std::uint64_t kMaxSize = kGranule * 0xFFFFFFFF;
  // The largest alignment that offsets can have: that of the memory itself.
  static constexpr std::uint64_t kMaxAlignment = std::uint64_t{2} << 20;

  // Of each rank's `size` bytes: no buffer ends beyond them. They are counted by
  // granules, of which the last one may have fewer.
  // REQUIRES: 0 < size <= kMaxSize.
  explicit SymmetricHeap(std::uint64_t size);
  ~SymmetricHeap();
  SymmetricHeap(SymmetricHeap&&) noexcept;
  SymmetricHeap& operator=(SymmetricHeap&&) noexcept;

  // Bytes from the beginning of each rank's memory, a multiple of `alignment`.
  // What is there is what was there.
  //   INVALID_ARGUMENT    size 0; alignment no power of two, or above
  //                       kMaxAlignment
  //   RESOURCE_EXHAUSTED  no free range is so large; the same on every rank
  absl::StatusOr<std::uint64_t> Allocate(std::uint64_t size,
                                         std::uint64_t alignment = kGranule);

  // What Allocate() returned may be handed out again. Streams of other ranks
  // may still use it: have the ranks meet first, on their GPUs.
  //   NOT_FOUND  no buffer begins there
  absl::Status Free(std::uint64_t offset);

  // Collective: every rank calls it. Whether all have made the same calls; one
  // round of the exchange. Call it where a mistake would otherwise write into
  // another buffer of a peer: after setting up, once a step.
  //   FAILED_PRECONDITION  they have not: names the ranks, and what each did
  //   DEADLINE_EXCEEDED    a rank did not come: names it
  //   INVALID_ARGUMENT, UNIMPLEMENTED  a rank said something else, or is of
  //                        another version
  absl::Status CheckAgreed(fabric::Exchange& exchange, Deadline deadline) const;

  // Both count whole granules.
  std::uint64_t size() const;
  std::uint64_t free_bytes() const;
  // Buffers that are allocated.
  std::uint64_t live() const;

 private:
  struct State;
  void Note(std::uint8_t call, std::uint64_t first, std::uint64_t second);

  std::unique_ptr<State> state_;
};

}  // namespace vmm::job

#endif  // VMMSHARE_VMM_JOB_SYMMETRIC_H_
