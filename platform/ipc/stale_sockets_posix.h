// The socket files that killed owners left behind; internal to platform/.
#ifndef VMMSHARE_PLATFORM_IPC_STALE_SOCKETS_POSIX_H_
#define VMMSHARE_PLATFORM_IPC_STALE_SOCKETS_POSIX_H_

#include <string>

#include "absl/status/statusor.h"
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

// Whether the open `directory` is on a file system that other machines may have as
// well, as they have one of NFS: the socket of a listener of theirs looks from here
// as if nobody had it. `path` is for the message of an error.
absl::StatusOr<bool> MayBeOfOtherMachines(const OsHandle& directory,
                                          const std::string& path);

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_IPC_STALE_SOCKETS_POSIX_H_
