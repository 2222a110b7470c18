// How memory travels over a channel; internal to vmm/. docs/wire_format.md has
// the byte tables.
//
//   sender                                  receiver
//   kBegin  how many allocations
//   kPart   tickets and their handles, in order; at most 16 handles each
//   ...
//                                           kDone     all of them are imported
//                                        or kRefused  why not; nothing is kept
//
// After an exchange that was asked for by kRequest the connection stands for
// as long as anything of it is held:
//
//                                           kReturn   what it holds no more
//   kRecall what is wanted back
//
// Instead of any of its messages the sender may send kAbort. A receiver that
// cannot import reads on to the end and then refuses, so that the channel
// stays usable; one that is sent nonsense closes it.
#ifndef VMMSHARE_VMM_PROTOCOL_H_
#define VMMSHARE_VMM_PROTOCOL_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "platform/channel.h"
#include "vmm/exporter.h"
#include "vmm/memory_id.h"
#include "vmm/ticket.h"

namespace vmm::protocol {

enum MessageType : std::uint16_t {
  kBegin = 0xF001,
  kPart = 0xF002,
  kAbort = 0xF003,
  kDone = 0xF004,
  kRefused = 0xF005,
  kRequest = 0xF006,  // To an endpoint: the ids of the memory wanted.
  kReturn = 0xF007,   // To an endpoint: the ids of memory unmapped here.
  kRecall = 0xF008,   // To an importer: the ids of memory wanted back.
};

// Allocations in one exchange.
inline constexpr std::size_t kMaxAllocations = 65536;
// Ids in one kRequest message: what fits into a message.
inline constexpr std::size_t kMaxRequested = 1024;

// One allocation to be sent: its ticket, and where its handles come from. They
// are made one part at a time, so that few descriptors are open at once.
struct Outgoing {
  Ticket ticket;
  std::function<absl::StatusOr<ExportedHandle>(std::size_t chunk)> handle;
};

// One allocation that came.
struct Incoming {
  Ticket ticket;
  std::vector<ExportedHandle> handles;  // One a chunk.
};

// Sends all of `memory` and waits for the receiver's word. An error that the
// receiver sent comes back with its code and "the importer refused: ".
absl::Status SendAll(platform::Channel& channel,
                     absl::Span<const Outgoing> memory, absl::Time deadline,
                     const platform::CancelEvent* cancel = nullptr);

// Receives an exchange and hands each allocation to `import` as soon as its
// handles are complete, in order. After the first error of `import` the rest
// is read and dropped, the sender is told, and the error returned. Else how
// many came. An error that the sender sent comes back with its code and "the
// owner refused: ".
absl::StatusOr<std::size_t> ReceiveAll(
    platform::Channel& channel,
    const std::function<absl::Status(Incoming)>& import, absl::Time deadline,
    const platform::CancelEvent* cancel = nullptr);

// Tells the peer an error: `type` is kAbort or kRefused.
absl::Status SendError(platform::Channel& channel, MessageType type,
                       const absl::Status& error, absl::Time deadline);

// REQUIRES: 1 to kMaxRequested ids.
absl::Status SendRequest(platform::Channel& channel,
                         absl::Span<const MemoryId> ids, absl::Time deadline);
// Total: INVALID_ARGUMENT for a message that is no request.
absl::StatusOr<std::vector<MemoryId>> DecodeRequest(
    const platform::Message& message);

// REQUIRES: 1 to kMaxRequested ids.
absl::Status SendReturn(platform::Channel& channel,
                        absl::Span<const MemoryId> ids, absl::Time deadline);
// Total: INVALID_ARGUMENT for a message that is none.
absl::StatusOr<std::vector<MemoryId>> DecodeReturn(
    const platform::Message& message);

struct Recall {
  absl::Duration within;  // Whole milliseconds, from when it was sent.
  std::vector<MemoryId> ids;
};
// REQUIRES: 1 to kMaxRequested ids. A time that has passed is sent as 0.
absl::Status SendRecall(platform::Channel& channel,
                        absl::Span<const MemoryId> ids, absl::Duration within,
                        absl::Time deadline);
// Total: DATA_LOSS for a message that is none.
absl::StatusOr<Recall> DecodeRecall(const platform::Message& message);

// The error in a kAbort or kRefused message. Total; what it says is printable
// and at most 1,024 bytes long, whatever was sent.
absl::Status DecodeError(absl::Span<const std::uint8_t> payload,
                         absl::string_view who);

}  // namespace vmm::protocol

#endif  // VMMSHARE_VMM_PROTOCOL_H_
