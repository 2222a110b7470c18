// Who is at the other end of a named pipe; internal to platform/.
#ifndef VMMSHARE_PLATFORM_PEER_WIN_H_
#define VMMSHARE_PLATFORM_PEER_WIN_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "platform/channel.h"
#include "platform/os_handle.h"

namespace vmm::platform {

struct Peer {
  PeerCredentials credentials;
  // The peer's process; nothing when this process may not open it. Of a client
  // with the right to duplicate handles into it and out of it, if we have it.
  OsHandle process;
  bool may_duplicate = false;
};

// What the kernel recorded about the client of `pipe`, which is a server's
// end. UNAVAILABLE when it has ended: its id may be another's by now.
absl::StatusOr<Peer> ReadClient(const OsHandle& pipe);
// About the server of `pipe`, a client's end. Its process is not always one
// that may be opened (a service's); its user is then the owner of the pipe.
absl::StatusOr<Peer> ReadServer(const OsHandle& pipe);

// OK when `peer` is this process's user or in `policy`; otherwise
// PERMISSION_DENIED. SYSTEM and administrators are no exception.
absl::Status CheckPeer(const PeerCredentials& peer, const PeerPolicy& policy);

// "process 12 of user S-1-5-21-...", for messages.
std::string Describe(const PeerCredentials& peer);

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_PEER_WIN_H_
