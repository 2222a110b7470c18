#include "vmm/turned_away.h"

#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace vmm {
namespace {

// How long a peer that is turned away may take to read why.
constexpr absl::Duration kRefusalTimeout = absl::Milliseconds(100);

}  // namespace

void TurnedAway::Tell(platform::Channel channel, protocol::MessageType type,
                      const absl::Status& why) {
  absl::Status told =
      protocol::SendError(channel, type, why, absl::Now() + kRefusalTimeout);
  if (!told.ok()) return;  // It is told by the hang-up instead.
  channels_.push_back(std::move(channel));
  if (channels_.size() > kMax) channels_.pop_front();
}

void TurnedAway::ForgetGone() {
  std::erase_if(channels_, [](const platform::Channel& channel) {
    return !absl::IsDeadlineExceeded(
        channel.WaitForHangUp(absl::InfinitePast()));
  });
}

}  // namespace vmm
