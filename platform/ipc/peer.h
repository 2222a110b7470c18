// Who may be at the other end of a channel, and what is said of it; internal to
// platform/.
#ifndef VMMSHARE_PLATFORM_IPC_PEER_H_
#define VMMSHARE_PLATFORM_IPC_PEER_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "platform/ipc/channel.h"

namespace vmm::platform {

// Whether `user` is this process's effective one or in `policy`.
bool IsListed(const UserId& user, const PeerPolicy& policy);

// OK when the user of `peer` is listed; otherwise PERMISSION_DENIED, with who is.
absl::Status CheckListed(const PeerCredentials& peer, const PeerPolicy& policy);

// OK when the user of `peer` is listed, and is an identity here: see
// CurrentUserIsUnknown(); otherwise PERMISSION_DENIED. Root, SYSTEM and
// administrators are no exception: a root peer of another user's process must be
// named in `policy`. Root could reach the memory without us; what the rule
// prevents is a program that talks to a service it did not mean.
absl::Status CheckPeer(const PeerCredentials& peer, const PeerPolicy& policy);

// "process 12 of user 1000", for messages; on Windows the user is a SID.
std::string Describe(const PeerCredentials& peer);

// UNAVAILABLE: the peer of `channel` hung up; this end is closed. Where it is of
// another user and nothing came from it: that it may not allow this one, for who is
// not allowed is turned away without a word.
absl::Status HungUpError(const Channel& channel);
absl::Status ClosedError();

// ALREADY_EXISTS, of which IsTakenByProcess() is true.
absl::Status TakenByProcessError(absl::string_view message);

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_IPC_PEER_H_
