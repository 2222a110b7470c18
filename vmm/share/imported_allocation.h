// ImportedAllocation: memory that another process created, mapped here.
//
// It keeps the memory alive even after its creator has died, and cannot be
// exported again: the driver does not allow it (measured). The importing
// process need not see the device that the memory lives on (measured with
// CUDA_VISIBLE_DEVICES hiding it). Memory of the driver's own allocators is
// weaker in all of that: see weakness(), and driver_block.h.
//
// Read access is a guard against stray writes, not a wall: who holds the
// handle can raise its own access, and so can SetAccess() below. Give a
// process that is not trusted a copy.
#ifndef VMMSHARE_VMM_SHARE_IMPORTED_ALLOCATION_H_
#define VMMSHARE_VMM_SHARE_IMPORTED_ALLOCATION_H_

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "vmm/memory/device.h"
#include "vmm/memory/driver_block.h"
#include "vmm/memory/handle_kind.h"
#include "vmm/memory/mapping.h"
#include "vmm/share/lease.h"
#include "vmm/share/ticket.h"

namespace vmm {

struct ImportOptions {
  // Who maps the memory. Empty: the device it lives on, with `access`;
  // FAILED_PRECONDITION when this process does not see that device.
  std::vector<AccessGrant> grants = {};
  // For the device chosen by an empty `grants`.
  Access access = Access::kRead;
  // For the CPU too, if it is memory of the host: on the node where it lives.
  Access host_access = Access::kNone;
  // Refuses memory that is a device's: what is opened, the CPU can access as
  // `host_access` says.
  bool host_memory_only = false;
  // Bytes, a power of two; 0 is the driver's own.
  std::uint64_t alignment = 0;
  // Where to map it, instead of at addresses of its own; `alignment` is then
  // of no account.
  std::optional<Placement> at = std::nullopt;
};

// Whether anybody is to map it for writing.
bool WantsToWrite(const ImportOptions& options);

class HeldLease;

// Move-only, thread-compatible.
class ImportedAllocation {
 public:
  // Imports the chunks that `ticket` describes from `handles`, one a chunk,
  // and maps them side by side. The handles may be closed afterwards. On
  // failure nothing stays imported.
  //   FAILED_PRECONDITION  the ticket is of another machine or driver; no
  //                        device to map it; no peer access; a device's memory
  //                        with `host_memory_only`; of a weaker kind: what that
  //                        cannot do, such as reading alone
  //   INVALID_ARGUMENT     another number of handles than chunks; a handle that
  //                        is not memory of the stated size, and of the host if
  //                        the ticket says so and `host_access` was asked for
  static absl::StatusOr<ImportedAllocation> Open(
      const platform::Driver& driver, const Ticket& ticket,
      absl::Span<const ExportedHandle> handles, const ImportOptions& options);

  CUdeviceptr address() const;
  std::uint64_t size() const { return ticket_.layout.size; }
  std::uint64_t requested_size() const { return ticket_.requested_size; }
  // What the owner said of the memory.
  const Ticket& ticket() const { return ticket_; }

  // What is weaker about it than about memory of cuMemCreate(), for people; empty
  // if it is such memory.
  std::string weakness() const;
  // The bytes around it that this process can reach by it, its own and those that
  // its owner has beside them; size 0 for memory of cuMemCreate().
  AddressSpan disclosed() const;

  // Whether its owner made it so that network cards can be given it (Rdma): the
  // owner's word, for the driver does not tell importers (measured). False of
  // what was not made by vmmshare.
  bool rdma_capable() const { return ticket_.rdma_capable; }

  // As in Allocation; PERMISSION_DENIED for writing what its owner shares for
  // reading only. UNIMPLEMENTED for memory of a weaker kind.
  absl::Status SetAccess(absl::Span<const AccessGrant> grants);
  absl::Status Unmap();
  absl::Status Remap();
  bool is_mapped() const;

  ImportedAllocation(ImportedAllocation&&) noexcept = default;
  ImportedAllocation& operator=(ImportedAllocation&& other) noexcept;

  // How its owner stands to it, if it came from an endpoint: see lease.h.
  // Reads what the owner has sent; waits for nothing. Thread-safe.
  LeaseStatus lease() const;
  // Internal: makes it a lease, which is returned once it is unmapped.
  void HoldLease(std::shared_ptr<const HeldLease> lease);
  // Internal: what its owner shares it for.
  void LimitTo(Access granted) { granted_ = granted; }

 private:
  using Region = std::variant<MappedRegion, OwnedOpenBlock>;
  ImportedAllocation(Ticket ticket, Region region)
      : ticket_(std::move(ticket)), region_(std::move(region)) {}
  // Null, and an error, for memory of a weaker kind.
  absl::StatusOr<MappedRegion*> Mapped(absl::string_view call);

  Ticket ticket_;
  Access granted_ = Access::kReadWrite;
  // Destroyed after region_: what is returned is not mapped any more.
  std::shared_ptr<const HeldLease> lease_;
  Region region_;
};

}  // namespace vmm

#endif  // VMMSHARE_VMM_SHARE_IMPORTED_ALLOCATION_H_
