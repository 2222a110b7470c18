#include "vmm/share/internal/dial.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/annotate.h"
#include "platform/base/status_macros.h"
#include "vmm/share/internal/busy.h"
#include "vmm/share/internal/protocol.h"

namespace vmm {
namespace {

absl::StatusOr<platform::Channel> Connect(const std::string& address,
                                          const platform::PeerPolicy& owners,
                                          absl::string_view what,
                                          Deadline deadline) {
  absl::StatusOr<platform::Channel> channel =
      platform::Channel::Connect(address, owners, deadline);
  if (channel.ok()) return channel;
  return platform::Annotate(
      channel.status(), absl::StrCat("nobody can be asked for ", what),
      absl::IsNotFound(channel.status())
          ? "The owner has ended, or its socket's folder was removed or is not "
            "mounted here (containers must share it, at the same path)."
          : "");
}

}  // namespace

absl::StatusOr<Granted> DialShare(
    const std::string& address, absl::Span<const ShareKey> keys,
    const platform::PeerPolicy& owners, absl::string_view what,
    Deadline deadline,
    const std::function<absl::Status(platform::Channel&)>& begin) {
  return RetryWhileBusy(deadline, [&](Busy* busy) -> absl::StatusOr<Granted> {
    ASSIGN_OR_RETURN(platform::Channel channel,
                     Connect(address, owners, what, deadline));
    // A child that it forked may have its sockets, where nobody answers.
    const absl::Status bound = channel.EndWithItsProcess();
    RETURN_IF_ERROR(platform::Annotate(
        bound, absl::StrCat("nobody can be asked for ", what),
        absl::IsNotFound(bound)
            ? "The owner has ended, and left a forked child behind."
            : ""));
    const absl::Status asked = protocol::SendOpen(channel, keys, deadline);
    if (absl::IsUnavailable(asked)) {
      *busy = Busy::kUnread;
      return TurnedAwayUnread("the owner", asked);
    }
    RETURN_IF_ERROR(asked);
    const absl::StatusOr<Access> access =
        protocol::ReceiveGranted(channel, deadline);
    absl::Status begun = access.status();
    if (begun.ok() && begin != nullptr) begun = begin(channel);
    if (!begun.ok()) {
      if (IsBusy(begun, channel)) *busy = Busy::kSaid;
      // What the owner has sent already goes with the connection.
      protocol::GiveUp(channel, begun);
      return begun;
    }
    return Granted{std::move(channel), *access};
  });
}

absl::Status CheckGranted(Access granted, bool wants_to_write) {
  if (!wants_to_write || granted == Access::kReadWrite) return absl::OkStatus();
  return absl::PermissionDeniedError(
      "it is shared for reading only: open it so, or have the owner share it "
      "for writing");
}

}  // namespace vmm
