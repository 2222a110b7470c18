// Peer: the process at the other end of a connection that is for ordering:
// a ring's other side, another member of a barrier; internal to vmm/.
//
// It is one process from its first message to its last. After that first
// message comes its lifeline, so that its end is proven (peer_watch.h) and not
// guessed from the end of its process.
#ifndef VMMSHARE_VMM_SYNC_INTERNAL_PEER_H_
#define VMMSHARE_VMM_SYNC_INTERNAL_PEER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "platform/ipc/channel.h"
#include "platform/ipc/peer_watch.h"
#include "platform/os/deadline.h"

namespace vmm {

// Thread-compatible, but for channel().
class Peer {
 public:
  // `who` is for messages: "the reader", "rank 2".
  Peer(platform::Channel channel, std::string who)
      : channel_(std::move(channel)), who_(std::move(who)) {}

  platform::Channel& channel() { return channel_; }
  const platform::Channel& channel() const { return channel_; }
  const std::string& who() const { return who_; }

  // The next message. DATA_LOSS when another process sent it than the first.
  // UNAVAILABLE also when its process has ended and left the connection to one
  // that it forked. Otherwise as Channel::Receive().
  absl::StatusOr<platform::Message> Receive(
      Deadline deadline, const platform::CancelEvent* cancel = nullptr);
  // A message that is there. DEADLINE_EXCEEDED when none is; looks at nothing
  // else.
  absl::StatusOr<platform::Message> ReceiveNow() {
    return ReceiveOnce(absl::InfinitePast(), nullptr);
  }
  // What follows its first message. UNAVAILABLE when that is a message of type
  // `bye`: it could not send its lifeline. DATA_LOSS when it is something else.
  absl::Status ReceiveLifeline(Deadline deadline, std::uint16_t bye);

  // Its process has ended. What that has forked may go on: for what reports,
  // and hands no memory on.
  bool ProcessHasEnded();
  // Nobody has its GPU context any more. Waits for that until the deadline.
  bool HasEnded(Deadline deadline);
  // The same for another thread, to ask of its own. Empty before its lifeline
  // has come.
  std::optional<platform::PeerWatch> watch() const { return watch_; }
  // What is known, for messages: "has ended"; or why that is not proven, and
  // what then becomes of streams that wait.
  std::string Describe();

 private:
  absl::StatusOr<platform::Message> ReceiveOnce(
      Deadline deadline, const platform::CancelEvent* cancel);

  platform::Channel channel_;
  std::string who_;
  std::uint64_t speakers_ = 0;
  std::optional<platform::PeerWatch> watch_;
};

}  // namespace vmm

#endif  // VMMSHARE_VMM_SYNC_INTERNAL_PEER_H_
