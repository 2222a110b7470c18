// Where channel sockets live, and who may reach them; internal to platform/.
#ifndef VMMSHARE_PLATFORM_IPC_SOCKET_PATH_POSIX_H_
#define VMMSHARE_PLATFORM_IPC_SOCKET_PATH_POSIX_H_

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "platform/ipc/channel.h"

namespace vmm::platform {

struct SocketAddress {
  sockaddr_un name;
  socklen_t size;
  const sockaddr* get() const {
    return reinterpret_cast<const sockaddr*>(&name);
  }
};

// `path` as a socket's address. INVALID_ARGUMENT unless it is absolute, names
// something in a directory, and fits (107 bytes).
absl::StatusOr<SocketAddress> MakeSocketAddress(const std::string& path);

// "user 1000", for messages; says of the number that stands for everybody whom
// this user namespace does not know that it does.
std::string OwnerText(uid_t owner);

// OK when sockets in `directory` can be trusted: it is a directory and not a
// link to one, belongs to root, this user or one that `policy` names, and
// nobody else may write to it. A sticky directory (/tmp; the one Kubernetes
// shares between containers has mode 1777) may be writable by all: nobody can
// remove or replace what another user put there. PERMISSION_DENIED otherwise;
// NOT_FOUND when it does not exist.
//
// Directories above it are not looked at: whoever could swap `directory` for
// another still cannot pass for an allowed user once connected.
absl::Status CheckDirectory(const std::string& directory,
                            const PeerPolicy& policy);

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_IPC_SOCKET_PATH_POSIX_H_
