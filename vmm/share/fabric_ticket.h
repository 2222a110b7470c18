// FabricTicket: a ticket and its fabric handles, as plain bytes.
//
//   // The owner; `weights` was made with a policy that has kFabric:
//   absl::StatusOr<std::vector<std::uint8_t>> bytes =
//       ExportFabricTicket(weights.shareable());
//   // Any process of the same NVLink domain, however the bytes came to it:
//   absl::StatusOr<ImportedAllocation> weights = ImportFabricTicket(
//       driver, *bytes, {.grants = {{Location::On(gpu), Access::kRead}}});
//
// A fabric handle is 64 bytes and nothing that must be sent in a special way,
// so no connection to the owner is needed: MPI, PMIx, a file or a store carry
// them. They hold no reference: the owner must keep the memory until the
// importer has it, and an importer learns of memory that has gone by the
// driver's refusal.
//
// Who has the bytes and may open the IMEX channel has the memory: they are as
// secret as it is. docs/wire_format.md has the byte table.
#ifndef VMMSHARE_VMM_SHARE_FABRIC_TICKET_H_
#define VMMSHARE_VMM_SHARE_FABRIC_TICKET_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "fabric/handle.h"
#include "platform/cuda/driver.h"
#include "vmm/memory/shareable.h"
#include "vmm/share/imported_allocation.h"
#include "vmm/share/ticket.h"

namespace vmm {

// A value.
struct FabricTicket {
  Ticket ticket;                        // Of kind kFabric.
  std::vector<fabric::Handle> handles;  // One a chunk, in order.
  friend bool operator==(const FabricTicket&, const FabricTicket&) = default;
};

// Bytes of the encoded ticket of memory of `chunks` chunks.
constexpr std::size_t FabricTicketBytes(std::size_t chunks) {
  return kTicketBytes + chunks * sizeof(fabric::Handle) + 4;
}

// Exports every chunk of `memory`. FAILED_PRECONDITION when it was not created
// with fabric handles; otherwise as the driver reports of the export.
absl::StatusOr<FabricTicket> MakeFabricTicket(const Shareable& memory);

// REQUIRES: the kind is kFabric, and there is one handle for each chunk.
std::vector<std::uint8_t> EncodeFabricTicket(const FabricTicket& ticket);

// Total: takes any bytes. INVALID_ARGUMENT for what is no such ticket,
// or is damaged or cut; UNIMPLEMENTED for a newer version.
absl::StatusOr<FabricTicket> DecodeFabricTicket(
    absl::Span<const std::uint8_t> bytes);

// MakeFabricTicket() and EncodeFabricTicket() in one.
absl::StatusOr<std::vector<std::uint8_t>> ExportFabricTicket(
    const Shareable& memory);

// Imports and maps what `bytes` name. The owner may be of another node, whose
// device this process does not see: then `options.grants` must say which of
// this process's devices map the memory. Errors as DecodeFabricTicket() and
// ImportedAllocation::Open(); what the driver refuses keeps the driver's
// result (platform::ResultOf).
absl::StatusOr<ImportedAllocation> ImportFabricTicket(
    const platform::Driver& driver, absl::Span<const std::uint8_t> bytes,
    const ImportOptions& options);
absl::StatusOr<ImportedAllocation> ImportFabricTicket(
    const platform::Driver& driver, const FabricTicket& ticket,
    const ImportOptions& options);

}  // namespace vmm

#endif  // VMMSHARE_VMM_SHARE_FABRIC_TICKET_H_
