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
// At an endpoint it begins with the importer:
//
//                                           its lifeline
//                                           kOpen     the keys of what it wants
//   kGranted  how it may be mapped
//
// and then comes an exchange, or what the Servable has to say that one of the
// keys is of. After an exchange the connection stands for as long as anything
// of it is held:
//
//                                           kReturn   what it holds no more
//   kRecall what is wanted back
//
// Instead of any of its messages the sender may send kAbort. A receiver that
// cannot import reads on to the end and then refuses, so that the channel
// stays usable; one that is sent nonsense closes it. An importer that gives up
// says by kRefused that it keeps nothing, and hangs up.
#ifndef VMMSHARE_VMM_SHARE_INTERNAL_PROTOCOL_H_
#define VMMSHARE_VMM_SHARE_INTERNAL_PROTOCOL_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "platform/ipc/channel.h"
#include "platform/os/deadline.h"
#include "vmm/memory/device.h"
#include "vmm/memory/internal/exporter.h"
#include "vmm/memory/internal/wire.h"
#include "vmm/memory/shareable.h"
#include "vmm/share/servable.h"
#include "vmm/share/ticket.h"

namespace vmm::protocol {

enum MessageType : std::uint16_t {
  kBegin = 0xF001,
  kPart = 0xF002,
  kAbort = 0xF003,
  kDone = 0xF004,
  kRefused = 0xF005,
  kReturn = 0xF007,   // To an endpoint: the ids of memory unmapped here.
  kRecall = 0xF008,   // To an importer: the ids of memory wanted back.
  kOpen = 0xF009,     // To an endpoint: the keys of what is wanted.
  kGranted = 0xF00A,  // To an importer: it comes.
};

// Of kOpen.
inline constexpr std::uint16_t kOpenVersion = 1;

// Allocations in one exchange.
inline constexpr std::size_t kMaxAllocations = 65536;
// Keys in one kOpen message, and ids in others: what fits into a message.
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

// What travels for `memory`: its ticket and a maker of its handles. Valid
// while `memory` is.
absl::StatusOr<Outgoing> MakeOutgoing(const Shareable& memory);

struct SendResult {
  absl::Status status;
  // Whether the receiver may have a handle: it got one, and has not refused.
  bool gave = false;
  // Whether the receiver is at the exchange's end, too. Otherwise an answer may
  // still come, and nothing more can be asked over the channel.
  bool in_step = true;
};

// Sends all of `memory` and waits for the receiver's word. An error that the
// receiver sent comes back with its code and "the importer refused: ". After
// another one the channel may be closed, or out of step.
SendResult TrySendAll(platform::Channel& channel,
                      absl::Span<const Outgoing> memory, Deadline deadline,
                      const platform::CancelEvent* cancel = nullptr);
// The same, but closes a channel that is out of step. After an error `gave` is
// that of the result.
absl::Status SendAll(platform::Channel& channel,
                     absl::Span<const Outgoing> memory, Deadline deadline,
                     const platform::CancelEvent* cancel = nullptr,
                     bool* gave = nullptr);

// Receives an exchange and hands each allocation to `import` as soon as its
// handles are complete, in order. After the first error of `import` the rest
// is read and dropped, the sender is told, and the error returned. The sender
// takes that for the word that nothing is kept: `import` lets go of all that it
// was given before it returns an error. Else how many came. An error that the
// sender sent comes back with its code and "the owner refused: ".
absl::StatusOr<std::size_t> ReceiveAll(
    platform::Channel& channel,
    const std::function<absl::Status(Incoming)>& import, Deadline deadline);
// The same, but leaves a channel open that is out of step, as SendResult has
// it. A sender of more than `most` breaks the protocol: nothing of it is
// imported. What `expects` refuses ends the exchange when its ticket comes,
// before a handle of it is kept: a ticket may ask for 65,536.
absl::StatusOr<std::size_t> TryReceiveAll(
    platform::Channel& channel,
    const std::function<absl::Status(Incoming)>& import, Deadline deadline,
    bool* in_step, const platform::CancelEvent* cancel = nullptr,
    std::size_t most = kMaxAllocations,
    const std::function<absl::Status(const Ticket&)>& expects = nullptr);

// Of one that asked an endpoint for something and does not wait for it any
// longer, before it closes the channel: says by kRefused that nothing is kept,
// if that can be said at once. Nothing where kHangingUpMayLoseHandles: handles
// may be in this process that it never hears of. REQUIRES: nothing is kept.
void GiveUp(platform::Channel& channel, const absl::Status& why);

// Tells the peer an error: `type` is kAbort or kRefused. CANCELLED, of which the
// peer's program knows nothing, is UNAVAILABLE there.
absl::Status SendError(platform::Channel& channel, MessageType type,
                       const absl::Status& error, Deadline deadline,
                       const platform::CancelEvent* cancel = nullptr);

// After this process's lifeline, by which the owner knows when nobody has the
// memory any more. REQUIRES: 1 to kMaxRequested keys.
absl::Status SendOpen(platform::Channel& channel,
                      absl::Span<const ShareKey> keys, Deadline deadline);
// Total: INVALID_ARGUMENT for a message that is none, or names a key twice;
// UNIMPLEMENTED for one of another version.
absl::StatusOr<std::vector<ShareKey>> DecodeOpen(
    const platform::Message& message);

// REQUIRES: kRead or kReadWrite.
absl::Status SendGranted(platform::Channel& channel, Access access,
                         Deadline deadline);
// An error that the owner sent comes back with its code and "the owner
// refused: ". Closes the channel on DATA_LOSS.
absl::StatusOr<Access> ReceiveGranted(platform::Channel& channel,
                                      Deadline deadline);

// REQUIRES: 1 to kMaxRequested ids.
absl::Status SendReturn(platform::Channel& channel,
                        absl::Span<const MemoryId> ids, Deadline deadline);
// Total: INVALID_ARGUMENT for a message that is none.
absl::StatusOr<std::vector<MemoryId>> DecodeReturn(
    const platform::Message& message);

// How long a recall gives, from when it is sent: in whole milliseconds, 0 for a
// time that has passed.
void PutWithin(WireWriter& out, absl::Duration within);
// Nothing where it is none.
std::optional<absl::Duration> TakeWithin(WireReader& in);

struct Recall {
  absl::Duration within;  // As PutWithin() has it.
  std::vector<MemoryId> ids;
};
// REQUIRES: 1 to kMaxRequested ids.
absl::Status SendRecall(platform::Channel& channel,
                        absl::Span<const MemoryId> ids, absl::Duration within,
                        Deadline deadline);
// Total: DATA_LOSS for a message that is none.
absl::StatusOr<Recall> DecodeRecall(const platform::Message& message);

// The error in a kAbort or kRefused message. Total; what it says is printable
// and at most 1,024 bytes long, whatever was sent.
absl::Status DecodeError(absl::Span<const std::uint8_t> payload,
                         absl::string_view who);

}  // namespace vmm::protocol

#endif  // VMMSHARE_VMM_SHARE_INTERNAL_PROTOCOL_H_
