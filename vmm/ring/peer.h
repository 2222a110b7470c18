// RingPeer: one side's view of the other, over the ring's channel; internal to
// vmm/. docs/wire_format.md has the messages.
//
//   writer                                   reader
//   kRingOffer  how many buffers, and the strings of both pools
//                                            kRingJoined, or protocol::kRefused
//   kRingItem   again and again
//   kRingEnd    no more come: how many there were
//   kRingBye    either side, at any time: it has left, and its GPU has passed
//               all that it put on streams
#ifndef VMMSHARE_VMM_RING_PEER_H_
#define VMMSHARE_VMM_RING_PEER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "platform/channel.h"
#include "platform/process.h"
#include "vmm/fence.h"

namespace vmm::ring {

enum MessageType : std::uint16_t {
  kRingOffer = 0xF020,
  kRingJoined = 0xF021,
  kRingItem = 0xF022,
  kRingEnd = 0xF023,
  kRingBye = 0xF024,
};

struct Offer {
  std::uint32_t buffers = 0;
  std::uint64_t bytes = 0;  // Of each.
  std::string pool;         // PoolPublication::ticket() of the buffers,
  std::string fences;       // and of the fences.
};

std::vector<std::uint8_t> EncodeOffer(const Offer& offer);
// Total: DATA_LOSS for bytes that are none, or no ring that can be.
absl::StatusOr<Offer> DecodeOffer(absl::Span<const std::uint8_t> in);

// Thread-compatible.
class RingPeer {
 public:
  // `who` is the other side, for messages: "reader", "writer".
  RingPeer(platform::Channel channel, const char* who);

  platform::Channel& channel() { return channel_; }
  const char* who() const { return who_; }

  // OK while it has not said kRingBye or hung up: reads what there is. For when
  // it may send nothing else. DATA_LOSS for anything else.
  absl::Status StillHere();

  // What ends a wait for this peer. The wait must end before this object.
  // `may_read`: nothing but kRingBye may come now, so it is looked for;
  // otherwise only hanging up counts.
  FenceWatch Watch(bool may_read);

  // The error for a peer that has hung up, with what `status` says. Waits a
  // moment, and not beyond `deadline`, for the end of its process: then
  // has_ended() is true.
  absl::Status Gone(const absl::Status& status, absl::Time deadline);

  // Its process is known to have ended, or it said that it has left.
  bool has_ended() const { return ended_; }
  void set_ended() { ended_ = true; }

  // Says kRingBye, if it can be said at once, and hangs up.
  void Leave();

 private:
  absl::Status LookForHangUp() const;

  platform::Channel channel_;
  const char* who_;
  std::optional<platform::Process> process_;
  bool ended_ = false;
};

}  // namespace vmm::ring

#endif  // VMMSHARE_VMM_RING_PEER_H_
