// SymmetricHeap: which parts of symmetric memory are in use, alike on every
// rank and without a word between them.
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
#ifndef VMMSHARE_VMM_JOB_SYMMETRIC_HEAP_H_
#define VMMSHARE_VMM_JOB_SYMMETRIC_HEAP_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fabric/exchange.h"
#include "platform/os/deadline.h"

namespace vmm::job {

// Arithmetic only: it calls no driver and touches no memory. Move-only,
// thread-compatible; with several threads the order of calls would differ from
// rank to rank.
class SymmetricHeap {
 public:
  // What offsets and sizes are rounded up to, bytes.
  static constexpr std::uint64_t kGranule = 256;
  // The largest alignment that offsets can have: that of the memory itself.
  static constexpr std::uint64_t kMaxAlignment = std::uint64_t{2} << 20;

  // Of each rank's `size` bytes, rounded up to a granule: symmetric memory has
  // as many. REQUIRES: 0 < size < 2^40.
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

#endif  // VMMSHARE_VMM_JOB_SYMMETRIC_HEAP_H_
