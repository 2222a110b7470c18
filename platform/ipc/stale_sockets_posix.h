// The socket files that killed owners left behind; internal to platform/.
#ifndef VMMSHARE_PLATFORM_IPC_STALE_SOCKETS_POSIX_H_
#define VMMSHARE_PLATFORM_IPC_STALE_SOCKETS_POSIX_H_

#include <string>

#include "absl/status/status.h"
#include "platform/ipc/socket_path_posix.h"
#include "platform/os/os_handle.h"

namespace vmm::platform {

// Removes, from the directory of `own`, the file of a bound socket, what killed
// owners left there: this user's sockets with a random name (32 hexadecimal
// digits) and at least 10 s older than `own` that no process of this machine
// has any more. Asking for that makes no connection. Does nothing in a
// directory that others may write to, and on a file system that is not known to
// be this kernel's alone (tmpfs, ext4, XFS and Btrfs are), and says nothing of
// what it cannot do.
void SweepStaleSockets(const std::string& own);

// Removes the file at `path`, in the open `directory`, whose lock the caller holds,
// if it is a socket of this user's on which nobody listens any more; OK, too, when
// there is none. ALREADY_EXISTS for everything else, and where a process of another
// machine may listen.
absl::Status RemoveStaleSocket(const std::string& path,
                               const SocketAddress& address,
                               const OsHandle& directory);

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_IPC_STALE_SOCKETS_POSIX_H_
