// What the owner of a pool and its subscribers say to each other once the
// endpoint has granted the subscriber's key (vmm/share/internal/protocol.h);
// internal to vmm/. docs/wire_format.md has the byte tables.
//
//   subscriber                              owner
//                                           kWelcome  share table, hold table
//                                           kSegment  each, once     } when
//                                           kForget   each that goes } they
//                                           kRecall   blocks wanted  } happen
//                                           kClosed   no more come
//   kBye        it will use no block again
//   or protocol::kRefused, when it gave up before it heard kWelcome
//
// The subscriber says nothing else: tickets travel as the program likes, and
// what it holds stands in its hold table. Instead of kWelcome the owner may
// send protocol::kAbort. Either side closes the channel when the other breaks
// the protocol.
#ifndef VMMSHARE_VMM_POOL_INTERNAL_SHARE_PROTOCOL_H_
#define VMMSHARE_VMM_POOL_INTERNAL_SHARE_PROTOCOL_H_

#include <cstdint>
#include <memory>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "platform/ipc/channel.h"
#include "platform/os/deadline.h"
#include "platform/os/os_handle.h"
#include "vmm/memory/internal/exporter.h"
#include "vmm/share/ticket.h"

namespace vmm::pool {

enum MessageType : std::uint16_t {
  kWelcome = 0xF011,
  kSegment = 0xF012,
  kForget = 0xF013,
  kClosed = 0xF014,
  kBye = 0xF015,
  kRecall = 0xF016,
};

// The two control memories, by handles of their own.
struct Welcome {
  platform::OsHandle table;
  platform::OsHandle holds;
};

// Where a segment lies among others: a block may begin in one and end in those
// that follow without a gap.
struct SegmentPlace {
  std::uint32_t range = 0;  // 0: by itself, and the rest is 0.
  std::uint64_t offset = 0;
  std::uint64_t size = 0;  // Of the range.
};
inline constexpr std::size_t kSegmentPlaceBytes = 24;
// Of a range.
inline constexpr std::uint64_t kMaxRangeSize = std::uint64_t{1} << 40;

// A segment as peers are given it.
struct SharedSegment {
  std::uint32_t number = 0;
  Ticket ticket;
  ExportedHandle handle;  // Of its only chunk.
  SegmentPlace place;
};

struct ForgetSegment {
  std::uint32_t number = 0;
};
struct Closed {};

// A block that the owner wants back: where it is, and which of the slot's.
struct RecalledSlot {
  std::uint32_t segment = 0;
  std::uint32_t slot = 0;
  std::uint64_t generation = 0;
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
};
inline constexpr std::size_t kRecalledSlotBytes = 32;
// What fits into a message.
inline constexpr std::size_t kMaxRecalled = 1000;

struct RecallBlocks {
  absl::Duration within;  // From when it is sent: protocol::PutWithin().
  std::vector<RecalledSlot> blocks;  // 1 to kMaxRecalled.
};

// What comes after the welcome.
using Notice = std::variant<std::shared_ptr<const SharedSegment>, ForgetSegment,
                            Closed, RecallBlocks>;

absl::Status SendWelcome(platform::Channel& channel, const Welcome& welcome,
                         Deadline deadline);
// Errors of the owner's come back with "the owner refused: ". After any other
// the channel is closed, and the owner was told, where it can be, that nothing is
// kept.
absl::StatusOr<Welcome> ReceiveWelcome(platform::Channel& channel,
                                       Deadline deadline);

// The subscriber's last word. Later it holds no block and maps no segment.
// Returns when the owner has hung up where handles could be lost otherwise.
absl::Status SendBye(platform::Channel& channel, Deadline deadline);
// Whether a message is that.
bool IsBye(const platform::Message& message);

absl::Status SendNotice(platform::Channel& channel, const Notice& notice,
                        Deadline deadline,
                        const platform::CancelEvent* cancel = nullptr);
// Closes the channel on DATA_LOSS. Otherwise as Channel::Receive.
absl::StatusOr<Notice> ReceiveNotice(platform::Channel& channel,
                                     Deadline deadline,
                                     const platform::CancelEvent* cancel);
// Total: DATA_LOSS for a message that is none.
absl::StatusOr<Notice> DecodeNotice(platform::Message message);

}  // namespace vmm::pool

#endif  // VMMSHARE_VMM_POOL_INTERNAL_SHARE_PROTOCOL_H_
