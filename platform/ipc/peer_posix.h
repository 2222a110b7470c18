// Who is at the other end of a Unix socket; internal to platform/.
#ifndef VMMSHARE_PLATFORM_IPC_PEER_POSIX_H_
#define VMMSHARE_PLATFORM_IPC_PEER_POSIX_H_

#include <sys/types.h>

#include <string>

#include "absl/status/statusor.h"
#include "platform/ipc/channel.h"
#include "platform/ipc/peer.h"
#include "platform/os/os_handle.h"

namespace vmm::platform {

// What the kernel recorded about the peer when `socket` was connected: for the
// side that connects, who called listen(); for a pair, who made it.
absl::StatusOr<PeerCredentials> ReadPeer(const OsHandle& socket);

// Whether `user` is the number under which the kernel shows everybody whom this
// user namespace does not map, so that it says nothing of who that is.
// That is 65534, and what kernel.overflowuid said when it was first asked.
bool StandsForUnknownUsers(const UserId& user);
// The same where kernel.overflowuid says `overflow`.
bool StandsForUnknownUsers(const UserId& user, uid_t overflow);
// What the file of kernel.overflowuid says.
absl::StatusOr<uid_t> ReadOverflowUser(const std::string& path);

// Whether the file owner `uid` may own a directory or socket that a channel
// goes through: root (who owns /tmp and could replace anything anyway) or an
// allowed peer.
bool MayOwnPath(uid_t uid, const PeerPolicy& policy);

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_IPC_PEER_POSIX_H_
