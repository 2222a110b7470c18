// Sends and receives allocations over a connected channel, or as plain bytes to
// any node of an NVLink domain (FabricTicket, below).
//
//   // The owner:
//   absl::Status sent = SendAllocation(channel, weights.shareable(), deadline);
//   // The importer, read-only unless it asks for more:
//   absl::StatusOr<ImportedAllocation> weights =
//       ReceiveAllocation(channel, driver, {}, deadline);
//
// Ticket and handles travel together; the owner learns whether the import
// worked. Both calls may be used on the same channel as often as wanted, and
// between the program's own messages (Channel::Send), whose types must be
// under kFirstReservedType.
#ifndef VMMSHARE_VMM_SHARE_TRANSFER_H_
#define VMMSHARE_VMM_SHARE_TRANSFER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "fabric/handle.h"
#include "platform/cuda/driver.h"
#include "platform/ipc/channel.h"
#include "platform/os/deadline.h"
#include "vmm/memory/shareable.h"
#include "vmm/share/imported_allocation.h"
#include "vmm/share/ticket.h"

namespace vmm {

// Message types from here on are vmmshare's own.
inline constexpr std::uint16_t kFirstReservedType = 0xF000;

// Sends all of `memory` in one exchange, with this system's own handle kind
// where the memory has it, else as fabric handles. Returns once the importer
// has imported and mapped all of it.
//   INVALID_ARGUMENT     nothing to send, or more than 65,536, or memory of more
//                        chunks than that
//   FAILED_PRECONDITION  memory that was created private
//   DEADLINE_EXCEEDED    the importer did not take or answer in time; the
//                        channel is closed, it may or may not have imported
//   UNAVAILABLE          the importer hung up
//   else                 what the importer answered ("the importer refused:"),
//                        or the driver's answer to the export
absl::Status SendAllocations(platform::Channel& channel,
                             absl::Span<const Shareable> memory,
                             Deadline deadline);
absl::Status SendAllocation(platform::Channel& channel, const Shareable& memory,
                            Deadline deadline);

// Receives one exchange and imports everything in it, in the order sent, each
// with `options`. All or nothing. On failure the owner is told why, but where the
// channel is closed.
//   DEADLINE_EXCEEDED    nothing came (the channel stays usable), or the rest
//                        did not (it is closed)
//   UNAVAILABLE          the owner hung up or died
//   DATA_LOSS            the owner broke the protocol; the channel is closed
//   UNIMPLEMENTED        an owner of another release
//   else                 as ImportedAllocation::Open, or what the owner
//                        answered ("the owner refused:")
absl::StatusOr<std::vector<ImportedAllocation>> ReceiveAllocations(
    platform::Channel& channel, const platform::Driver& driver,
    const ImportOptions& options, Deadline deadline);
// FAILED_PRECONDITION when more than one came.
absl::StatusOr<ImportedAllocation> ReceiveAllocation(
    platform::Channel& channel, const platform::Driver& driver,
    const ImportOptions& options, Deadline deadline);

// Fabric tickets: a ticket and its fabric handles, as plain bytes.
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

#endif  // VMMSHARE_VMM_SHARE_TRANSFER_H_
