// Who is at the other end of a named pipe; internal to platform/.
#ifndef VMMSHARE_PLATFORM_IPC_PEER_WIN_H_
#define VMMSHARE_PLATFORM_IPC_PEER_WIN_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "platform/ipc/channel.h"
#include "platform/ipc/peer.h"
#include "platform/os/os_handle.h"

namespace vmm::platform {

struct Peer {
  PeerCredentials credentials;
  // The peer's process; nothing when this process may not open it. Of a client
  // with the right to duplicate handles into it and out of it, if we have it.
  OsHandle process;
  bool may_duplicate = false;
};

// The time of day by which process times are told, in units of 100 ns.
std::uint64_t TimeOfDay();

// Whether a process of the time `created` can be the peer of a connection of the
// time `connected`. Not if it is younger. A time after `now` says nothing of its
// age, only that the clock was set back since: it was made before that.
bool CanBePeer(std::uint64_t created, std::uint64_t connected,
               std::uint64_t now);

// What the kernel recorded about the client of `pipe`, which is a server's
// end. UNAVAILABLE when it has ended: its id may be another's by now, surely so
// if that process is younger than `connected`, when there was a client already.
absl::StatusOr<Peer> ReadClient(const OsHandle& pipe, std::uint64_t connected);
// About the server of `pipe`, a client's end: its user is the pipe's owner.
// The process is nothing if it may not be opened, as a service's.
// PERMISSION_DENIED by CheckServer().
absl::StatusOr<Peer> ReadServer(const OsHandle& pipe);

// What can be known of a pipe's server.
struct ServerFacts {
  // Of the pipe; not to be forged without privilege. The process is the one
  // that has its creator's id now.
  UserId owner;
  // Nothing of a process that may not be asked.
  std::optional<UserId> process_user;
  std::optional<std::uint32_t> integrity;
  std::uint32_t own_integrity = 0;  // This process's.
};

// PERMISSION_DENIED unless the server is the owner's and trusted by Windows at
// least as much as this process: programs of one user that are kept apart (at
// low integrity, in an AppContainer) can take a name that is free.
absl::Status CheckServer(const ServerFacts& server, std::int64_t pid);

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_IPC_PEER_WIN_H_
