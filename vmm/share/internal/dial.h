// How an importer comes to what an endpoint serves; internal to vmm/.
#ifndef VMMSHARE_VMM_SHARE_INTERNAL_DIAL_H_
#define VMMSHARE_VMM_SHARE_INTERNAL_DIAL_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "platform/ipc/channel.h"
#include "platform/os/deadline.h"
#include "vmm/share/servable.h"

namespace vmm {

// A connection on which the owner goes on to send what was asked for.
struct Granted {
  platform::Channel channel;
  Access access;  // What it may be mapped for.
};

// Dials the endpoint at `address`, asks for what `keys` open, and calls `begin`,
// if there is one, which receives what the owner sends first. `what` is for
// messages. Errors of the owner's come back with "the owner refused: ". When it
// has no room (RESOURCE_EXHAUSTED, also from `begin`) all is tried again until
// `deadline`.
absl::StatusOr<Granted> DialShare(
    const std::string& address, absl::Span<const ShareKey> keys,
    const platform::PeerPolicy& owners, absl::string_view what,
    Deadline deadline,
    const std::function<absl::Status(platform::Channel&)>& begin = nullptr);

// PERMISSION_DENIED for who wants to write what is granted for reading.
absl::Status CheckGranted(Access granted, bool wants_to_write);

}  // namespace vmm

#endif  // VMMSHARE_VMM_SHARE_INTERNAL_DIAL_H_
