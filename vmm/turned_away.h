// TurnedAway: the peers that a server has no room for; internal to vmm/.
#ifndef VMMSHARE_VMM_TURNED_AWAY_H_
#define VMMSHARE_VMM_TURNED_AWAY_H_

#include <cstddef>
#include <deque>

#include "absl/status/status.h"
#include "platform/channel.h"
#include "vmm/protocol.h"

namespace vmm {

// Thread-compatible.
class TurnedAway {
 public:
  // Connections that are kept at most: the latest ones.
  static constexpr std::size_t kMax = 16;

  // Tells a peer why, by a message of `type`. Its connection stays until it has
  // hung up: if that were done here it would lose the message, since the peer
  // would fail to send its request and never read.
  void Tell(platform::Channel channel, protocol::MessageType type,
            const absl::Status& why);
  // Closes the connections of those that have hung up.
  void ForgetGone();

 private:
  std::deque<platform::Channel> channels_;
};

}  // namespace vmm

#endif  // VMMSHARE_VMM_TURNED_AWAY_H_
