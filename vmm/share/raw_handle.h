// RawHandle: one chunk of memory as other software makes and wants it.
//
//   // For cuda.core, NCCL, NIXL, Vulkan, or a transport of the program's own:
//   absl::StatusOr<RawHandle> raw = ExportRaw(weights.shareable(), 0, kind);
//   // Memory of theirs, here:
//   std::vector<RawHandle> chunks;
//   chunks.push_back({kind, size, std::move(handle)});
//   absl::StatusOr<ImportedAllocation> theirs =
//       ImportRaw(device, Location::On(device), std::move(chunks), {});
//   // Of an endpoint's memory, without mapping it:
//   absl::StatusOr<FetchedHandles> fetched = FetchRaw(driver, text, deadline);
//
// Between two processes that use vmmshare, transfer.h and endpoint.h do this
// and more: they say sizes and kinds themselves, and know who holds what.
#ifndef VMMSHARE_VMM_SHARE_RAW_HANDLE_H_
#define VMMSHARE_VMM_SHARE_RAW_HANDLE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "platform/cuda/driver.h"
#include "platform/ipc/channel.h"
#include "platform/os/deadline.h"
#include "vmm/memory/device.h"
#include "vmm/memory/handle_kind.h"
#include "vmm/memory/shareable.h"
#include "vmm/share/imported_allocation.h"
#include "vmm/share/lease.h"
#include "vmm/share/ticket.h"

namespace vmm {

// Move-only: it owns a descriptor or NT handle.
struct RawHandle {
  HandleKind kind = HandleKind::kPosixFd;
  std::uint64_t size = 0;  // Bytes of the chunk. No handle tells them.
  ExportedHandle handle;
};

// Exports chunk `chunk` of `memory`. INVALID_ARGUMENT when it has fewer;
// FAILED_PRECONDITION when it was not created with `kind`; otherwise as the
// driver answers.
absl::StatusOr<RawHandle> ExportRaw(const Shareable& memory, std::size_t chunk,
                                    HandleKind kind);

// Maps chunks side by side, whoever made them: a whole cuMemCreate() each. All
// of one kind and of one size, but the last may be smaller. `where` they are is
// the caller's word; `device` maps them if `options` name none.
//   INVALID_ARGUMENT  no chunk; kinds or sizes that differ; what is no memory
//                     of the stated size; a NUMA node below 0
//   else              as ImportedAllocation::Open()
absl::StatusOr<ImportedAllocation> ImportRaw(const Device& device,
                                             const Location& where,
                                             std::vector<RawHandle> chunks,
                                             const ImportOptions& options);

class HeldLease;

// What FetchRaw() returns. Move-only, and a lease: the owner counts it as held
// until this goes, so keep it for as long as the other software has the memory.
class FetchedHandles {
 public:
  // What the owner said of the memory.
  const Ticket& ticket() const { return ticket_; }
  // One a chunk, in order, to be taken.
  std::vector<RawHandle>& chunks() { return chunks_; }
  // As ImportedAllocation::lease(): whether the owner wants it back.
  LeaseStatus lease() const;

  FetchedHandles(Ticket ticket, std::vector<RawHandle> chunks,
                 std::shared_ptr<const HeldLease> lease)
      : ticket_(std::move(ticket)),
        lease_(std::move(lease)),
        chunks_(std::move(chunks)) {}
  FetchedHandles(FetchedHandles&&) noexcept = default;
  FetchedHandles& operator=(FetchedHandles&& other) noexcept {
    if (this != &other) {
      chunks_ = std::move(other.chunks_);  // Closes the old ones first.
      lease_ = std::move(other.lease_);
      ticket_ = std::move(other.ticket_);
    }
    return *this;
  }

 private:
  Ticket ticket_;
  // Destroyed after chunks_: what is returned is not open here any more.
  std::shared_ptr<const HeldLease> lease_;
  std::vector<RawHandle> chunks_;
};

// The handles of what `ticket` (Share::ticket()) names, for software that maps
// them itself. Nothing is mapped here. Errors as OpenTicket(); PERMISSION_DENIED
// for what is shared for reading only, for a handle gives whole access.
absl::StatusOr<FetchedHandles> FetchRaw(
    const platform::Driver& driver, absl::string_view ticket, Deadline deadline,
    const platform::PeerPolicy& owners = {});

}  // namespace vmm

#endif  // VMMSHARE_VMM_SHARE_RAW_HANDLE_H_
