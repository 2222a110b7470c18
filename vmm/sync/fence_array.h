// FenceArray: fences in device memory that processes share already.
//
// FencePool's fences are in memory of the host, where everybody on the machine
// can look. What nodes of an NVLink fabric share is memory of their GPUs; so
// fences between nodes are there, and are the same vmm::Fence:
//
//   // Every rank of a job: a page for its fences, mapped by all.
//   auto page = job::SymmetricMemory::Create(device, exchange,
//                                            {.size = 1 << 20}, deadline);
//   auto mine = FenceArray::Over(device, page->address(page->rank()), 1 << 20);
//   absl::Status cleared = (*mine)->Clear(deadline);  // Then all meet, once.
//   auto theirs = FenceArray::Over(device, page->address(rank), 1 << 20);
//   // Fence i of an array is the same fence for all that have the memory:
//   absl::StatusOr<Fence> filled = (*theirs)->At(0);
//   absl::Status sent = filled->Signal(stream, ++frame);
//
// Any VMM memory that the device may write will do: an Allocation, an import by
// fabric handle or by descriptor, symmetric memory. No ticket is needed, for
// whoever has the memory knows where fence i is; and nothing is kept of a fence
// that goes, for fence i is there as long as the memory is. Let the side that
// waits have the memory: its GPU looks at its own, and one write crosses the
// link.
//
// Prefer FencePool on one machine: there the host looks without asking a GPU.
//
// A barrier of the ranks' streams, without a host in between: each rank has a
// fence for each other one in its page, and all of them meet at 1, 2, 3.
//
//   // others_of_me[r]: fence `me` of rank r's page; mine[r]: fence r of my page.
//   absl::Status met = Fence::Meet(stream, others_of_me, mine, ++round);
#ifndef VMMSHARE_VMM_SYNC_FENCE_ARRAY_H_
#define VMMSHARE_VMM_SYNC_FENCE_ARRAY_H_

#include <cuda.h>

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "platform/os/deadline.h"
#include "vmm/memory/device.h"
#include "vmm/sync/fence.h"
#include "vmm/sync/fence_pool.h"

namespace vmm {

// Thread-safe. In a forked child it does nothing when destroyed, and nothing
// else may be called there.
class FenceArray {
 public:
  // Fences in the `bytes` at `memory`, kFenceBytes each, whose streams are of
  // `device`, and wait by `mechanism`. Changes nothing there. Takes a stream, and
  // of host memory 2 MiB, by which the host asks, and a sixteenth of `bytes`. Make
  // it before streams wait: the driver may not make a stream while many do
  // (docs/ordering.md).
  //   INVALID_ARGUMENT     `memory` or `bytes` is no multiple of kFenceBytes, or
  //                        none; more than there are addresses behind `memory`
  //   FAILED_PRECONDITION  `device` may not write to the first byte or the last, or
  //                        nothing is mapped there, or it is no VMM memory. What is
  //                        between is not looked at
  //   UNIMPLEMENTED        the device has no stream memory operations; or no
  //                        kernels can be had of the driver (before CUDA 12.0) or
  //                        for the device (older than Volta)
  //   DEADLINE_EXCEEDED    the GPU did not run kernels within 10 s
  //   else                 as the driver reports
  // With kernels streams must be of the device's primary context, and whoever
  // signals must have a GPU of its own: on one GPU two processes take turns, and
  // a wait keeps its turn. What fills the GPU and waits for what comes behind a
  // wait waits for ever, as it does among kernels.
  // REQUIRES: all the memory is mapped so, until the array and its fences have gone
  // and the GPU has passed their waits and signals.
  static absl::StatusOr<std::unique_ptr<FenceArray>> Over(
      const Device& device, CUdeviceptr memory, std::uint64_t bytes,
      FenceMechanism mechanism = FenceMechanism::kStreamMemoryOperations);
  // Fences may outlive it.
  ~FenceArray();
  FenceArray(const FenceArray&) = delete;
  FenceArray& operator=(const FenceArray&) = delete;

  std::uint64_t size() const;  // Fences.

  // Fence `index`, or this process's share in it. Several objects may be had of
  // one. INVALID_ARGUMENT from size() on.
  absl::StatusOr<Fence> At(std::uint64_t index);

  // Makes all of them new, of value 0: to be called by one process before
  // others use them. It is a fill, which stands while as many streams of the process
  // wait as there are hardware queues (docs/ordering.md). DEADLINE_EXCEEDED: the
  // zeros may come yet; until they have, the host is answered of no fence of the
  // array, and the memory must stay mapped, also when the array has gone. Call it
  // again to wait for them. Else as the driver reports.
  // REQUIRES: nobody uses them, and no other array is over them that was used:
  // it remembers what it saw.
  absl::Status Clear(Deadline deadline);

 private:
  class Core;
  explicit FenceArray(std::shared_ptr<Core> core);
  std::shared_ptr<Core> core_;
};

}  // namespace vmm

#endif  // VMMSHARE_VMM_SYNC_FENCE_ARRAY_H_
