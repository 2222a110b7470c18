// Sends and receives allocations over a connected channel.
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

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "platform/cuda/driver.h"
#include "platform/ipc/channel.h"
#include "platform/os/deadline.h"
#include "vmm/memory/shareable.h"
#include "vmm/share/imported_allocation.h"

namespace vmm {

// Message types from here on are vmmshare's own.
inline constexpr std::uint16_t kFirstReservedType = 0xF000;

// Sends all of `memory` in one exchange, with this system's own handle kind
// where the memory has it, else as fabric handles. Returns once the importer
// has imported and mapped all of it.
//   INVALID_ARGUMENT     nothing to send, or more than 65,536
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
// with `options`. All or nothing. On failure the owner is told why.
//   DEADLINE_EXCEEDED    nothing came (the channel stays usable), or the rest
//                        did not (it is closed)
//   UNAVAILABLE          the owner hung up or died
//   DATA_LOSS            the owner broke the protocol; the channel is closed
//   else                 as ImportedAllocation::Open, or what the owner
//                        answered ("the owner refused:")
absl::StatusOr<std::vector<ImportedAllocation>> ReceiveAllocations(
    platform::Channel& channel, const platform::Driver& driver,
    const ImportOptions& options, Deadline deadline);
// FAILED_PRECONDITION when more than one came.
absl::StatusOr<ImportedAllocation> ReceiveAllocation(
    platform::Channel& channel, const platform::Driver& driver,
    const ImportOptions& options, Deadline deadline);

}  // namespace vmm

#endif  // VMMSHARE_VMM_SHARE_TRANSFER_H_
