// RestorableAllocation and RestorableImport: memory that is given back for a
// while and comes back at the same addresses, in the owner and in all who
// imported it.
//
//   // The owner:
//   auto weights = RestorableAllocation::Share(*endpoint, *std::move(memory));
//   GiveToImporters(weights->ticket());      // Good for as long as it lives.
//   ...
//   absl::Status released = weights->Release(Keep::kHostMemory, deadline);
//   ...                                      // The device's memory is free.
//   absl::Status restored = weights->Restore();
//
//   // An importer:
//   auto weights = RestorableImport::Open(driver, ticket, {}, deadline);
//   ...
//   if (weights->lease().return_by) {        // Recalled.
//     cuStreamSynchronize(stream);
//     absl::Status released = weights->Release();
//     ...
//     absl::Status restored = weights->Restore(deadline);
//   }
//
// Both keep their addresses reserved meanwhile, so pointers, tensors and captured
// CUDA graphs are good again afterwards. In between nothing is there: a kernel
// that touches it ends its context. Each call that fails leaves the memory as it
// was before, or as it was to become; docs/sleep.md has the steps.
#ifndef VMMSHARE_VMM_SHARE_RESTORABLE_H_
#define VMMSHARE_VMM_SHARE_RESTORABLE_H_

#include <cuda.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "platform/cuda/driver.h"
#include "platform/ipc/channel.h"
#include "platform/os/deadline.h"
#include "vmm/memory/allocation.h"
#include "vmm/memory/restorable_region.h"
#include "vmm/share/endpoint.h"
#include "vmm/share/imported_allocation.h"
#include "vmm/share/lease.h"

namespace vmm {

class HostCopy;

// Fills memory that is mapped again and that nobody has yet; its device may write to
// it meanwhile, also where it may only read else. All that it starts has ended when it
// returns; an error ends the restoring. So does what it throws, which goes on to who
// called Restore(): the memory is released as before.
using Fill = std::function<absl::Status(const Allocation& memory)>;
// From the bytes of a file, from `offset` on: requested_size() of them. Errors,
// when it is called: NOT_FOUND, DATA_LOSS for a file that ends too early,
// INVALID_ARGUMENT for an offset at which no file has so many, others as the
// system answers.
Fill FillFromFile(std::string path, std::uint64_t offset = 0);

// An allocation that is shared by an endpoint, released and restored. Move-only,
// thread-compatible; importers come and go meanwhile.
class RestorableAllocation {
 public:
  // Errors as Endpoint::Publish(), and UNIMPLEMENTED for memory of a weaker kind
  // (driver_block.h); then `memory` is gone. REQUIRES: mapped; `endpoint` outlives
  // what is returned.
  static absl::StatusOr<RestorableAllocation> Share(
      Endpoint& endpoint, Allocation memory, const ShareOptions& options = {});
  ~RestorableAllocation();
  RestorableAllocation(RestorableAllocation&&) noexcept;
  RestorableAllocation& operator=(RestorableAllocation&&) noexcept;

  CUdeviceptr address() const { return memory_.address(); }
  std::uint64_t size() const { return memory_.size(); }
  const Allocation& memory() const { return memory_; }
  bool is_released() const { return !memory_.is_mapped(); }
  // For RestorableImport::Open() and OpenTicket(): the same text all the time,
  // which opens what is there when it is used.
  const std::string& ticket() const { return share_.ticket(); }

  // Recalls all leases, waits for their return, copies the contents if they are to
  // be kept, unmaps the memory and gives it back to the device. Who opens the ticket
  // meanwhile, or later, is told that it is released.
  //   DEADLINE_EXCEEDED    names who has not let go
  //   RESOURCE_EXHAUSTED   the host has too little memory for the copy
  //   FAILED_PRECONDITION  it is released; or this is a forked child, whose it is
  //                        not
  // After an error nothing has changed: the memory is mapped, has its contents and
  // is served. Only if the driver fails to unmap, that is told and the memory is
  // released all the same. The copy is made in the device's primary context, which
  // is made if nobody has, and is waited for without a deadline
  // (docs/ordering.md#which-calls-stand-then).
  // REQUIRES: all work of this process that uses the memory has ended.
  absl::Status Release(Keep keep, Deadline deadline);

  // Makes memory, maps it at the same address with the same access, fills it, and
  // serves it. With no `fill` it gets the contents that Release() kept.
  //   RESOURCE_EXHAUSTED   the memory does not fit
  //   FAILED_PRECONDITION  it is not released; nothing was kept and there is no
  //                        `fill`; a forked child
  //   else                 as `fill`, or the driver, answers
  // After an error it is released as before, and what was kept is kept.
  absl::Status Restore(const Fill& fill = nullptr);

 private:
  RestorableAllocation(Endpoint& endpoint, Allocation memory, vmm::Share share);
  absl::Status LetGo(Keep keep, Deadline deadline);
  absl::Status MakeAndServe(const Fill& fill);

  Endpoint* endpoint_;
  Allocation memory_;
  vmm::Share share_;
  std::unique_ptr<const HostCopy> kept_;
};

// Memory of another process that is let go of when it is recalled, and opened
// again at the same address. Move-only, thread-compatible.
class RestorableImport {
 public:
  // As OpenTicket(): of a RestorableAllocation, or any other share. Who shares
  // this memory is asked again by Restore(), by the same ticket. UNIMPLEMENTED for
  // memory of a weaker kind (driver_block.h), which has no address of one's choice.
  static absl::StatusOr<RestorableImport> Open(
      const platform::Driver& driver, absl::string_view ticket,
      const ImportOptions& options, Deadline deadline,
      const platform::PeerPolicy& owners = {});

  CUdeviceptr address() const { return at_.range->base() + at_.offset; }
  std::uint64_t size() const { return size_; }
  std::uint64_t requested_size() const { return requested_size_; }
  bool is_released() const { return !memory_.has_value(); }
  // What is there now. REQUIRES: !is_released().
  const ImportedAllocation& memory() const;
  // Whether its owner wants it back, as ImportedAllocation::lease().
  // FAILED_PRECONDITION, in `connection`, when it is released.
  LeaseStatus lease() const;

  // Unmaps the memory, gives it back to its owner, and closes the connection; the
  // addresses stay reserved. Not ordered after work on any stream: synchronise
  // first. FAILED_PRECONDITION when it is released; when the driver fails to unmap,
  // that is told, and it is released all the same.
  absl::Status Release();

  // Asks the owner again, and maps what it has now at the same address with the
  // access of Open(). Waits, until `deadline`, for an owner that has not restored it
  // yet; with an infinite one it is asked once. Errors as OpenTicket(),
  // RESOURCE_EXHAUSTED among them for memory that was not restored by then;
  // FAILED_PRECONDITION when it is not released. After an error it is released as
  // before, and may be tried again.
  absl::Status Restore(Deadline deadline);

 private:
  RestorableImport(platform::Driver driver, std::string ticket,
                   const ImportOptions& options, platform::PeerPolicy owners,
                   Placement at);

  platform::Driver driver_;
  std::string ticket_;
  ImportOptions options_;
  platform::PeerPolicy owners_;
  Placement at_;
  std::uint64_t size_ = 0;
  std::uint64_t requested_size_ = 0;
  std::optional<ImportedAllocation> memory_;
};

}  // namespace vmm

#endif  // VMMSHARE_VMM_SHARE_RESTORABLE_H_
