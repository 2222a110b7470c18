// For whom imported memory is mapped or opened; internal to vmm/.
#ifndef VMMSHARE_VMM_SHARE_INTERNAL_IMPORT_GRANTS_H_
#define VMMSHARE_VMM_SHARE_INTERNAL_IMPORT_GRANTS_H_

#include <optional>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "vmm/memory/device.h"
#include "vmm/memory/driver_block.h"
#include "vmm/memory/handle_kind.h"
#include "vmm/share/imported_allocation.h"
#include "vmm/share/ticket.h"

namespace vmm {

using Grants = absl::InlinedVector<AccessGrant, 1>;

bool AnyWrites(absl::Span<const AccessGrant> grants);

// Whom `options` want the ticket's memory for. `owner` is the device it lives
// on, if this process sees that. FAILED_PRECONDITION when they name nobody and
// it does not; and for a device's memory with `host_memory_only`.
absl::StatusOr<Grants> GrantsFor(const Ticket& ticket,
                                 const std::optional<Device>& owner,
                                 const ImportOptions& options);

// Memory of the driver's own allocators, which is opened and not mapped.
// FAILED_PRECONDITION for what cannot be done with it, INVALID_ARGUMENT for a
// ticket that is of none; otherwise as OpenSharedBlock().
absl::StatusOr<OwnedOpenBlock> OpenBlockOf(const Ticket& ticket,
                                           const ExportedHandle& handle,
                                           const std::optional<Device>& owner,
                                           absl::Span<const AccessGrant> grants,
                                           const ImportOptions& options);

}  // namespace vmm

#endif  // VMMSHARE_VMM_SHARE_INTERNAL_IMPORT_GRANTS_H_
