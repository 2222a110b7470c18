// How a Channel comes to be, and who is at its other end.
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"
#include "platform/ipc/channel.h"
#include "platform/ipc/channel_state_posix.h"
#include "platform/ipc/hang_up_posix.h"
#include "platform/ipc/peer_posix.h"
#include "platform/ipc/socket_advice_posix.h"
#include "platform/ipc/socket_path_posix.h"
#include "platform/ipc/speaker_posix.h"
#include "platform/os/descriptor_posix.h"
#include "platform/os/os_error.h"

namespace vmm::platform {
namespace {

absl::StatusOr<int> SocketOption(const OsHandle& socket, int option,
                                 absl::string_view name) {
  int value = 0;
  socklen_t size = sizeof(value);
  if (::getsockopt(Fd(socket), SOL_SOCKET, option, &value, &size) != 0) {
    return LastError().Of(
        absl::StrCat("getsockopt(", socket.get(), ", ", name, ")"));
  }
  return value;
}

// OK when what lies at `address` is a socket of an allowed user's.
absl::Status CheckSocketFile(const std::string& address,
                             const PeerPolicy& policy) {
  struct stat about;
  if (::lstat(address.c_str(), &about) != 0) {
    const LastError error;
    return error.Of(absl::StrCat("lstat(", address, ")"),
                    error.code() == ENOENT ? "Nobody listens there."
                                           : LookAdvice(error.code()));
  }
  if (!S_ISSOCK(about.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(
        address, " is not a socket, so it is no channel's address"));
  }
  if (!MayOwnPath(about.st_uid, policy)) {
    return absl::PermissionDeniedError(absl::StrCat(
        "the socket ", address, " belongs to ", OwnerText(about.st_uid),
        ", who is neither root nor an allowed user. ", TwoUsersAdvice()));
  }
  return absl::OkStatus();
}

// Lets a connect() on `socket` wait until `deadline` and no longer: the kernel
// bounds the wait for a place in the listener's queue by this option.
absl::Status BoundConnect(const OsHandle& socket, Deadline deadline) {
  const timeval bound = absl::ToTimeval(
      std::clamp(deadline.Left(), absl::Microseconds(1), absl::Hours(24)));
  if (::setsockopt(Fd(socket), SOL_SOCKET, SO_SNDTIMEO, &bound,
                   sizeof(bound)) != 0) {
    return LastError().Of("setsockopt(SO_SNDTIMEO)");
  }
  return absl::OkStatus();
}

// Who made `socket`, if it is a channel's and `policy` allows them.
absl::StatusOr<PeerCredentials> CheckSocket(const OsHandle& socket,
                                            const PeerPolicy& policy) {
  ASSIGN_OR_RETURN(const int domain,
                   SocketOption(socket, SO_DOMAIN, "SO_DOMAIN"));
  ASSIGN_OR_RETURN(const int type, SocketOption(socket, SO_TYPE, "SO_TYPE"));
  sockaddr_un name;
  socklen_t size = sizeof(name);
  const int error =
      ::getpeername(Fd(socket), reinterpret_cast<sockaddr*>(&name), &size) == 0
          ? 0
          : errno;
  if (domain != AF_UNIX || type != SOCK_SEQPACKET || error == ENOTCONN) {
    return absl::InvalidArgumentError(absl::StrCat(
        "descriptor ", socket.get(), " is a socket of domain ", domain,
        " and type ", type, ", and must be a connected one of domain ", AF_UNIX,
        " (AF_UNIX) and type ", SOCK_SEQPACKET, " (SOCK_SEQPACKET)"));
  }
  if (error != 0) {
    return OsError(error, absl::StrCat("getpeername(", socket.get(), ")"));
  }
  if (::fcntl(Fd(socket), F_SETFD, FD_CLOEXEC) != 0) {
    return LastError().Of(absl::StrCat("fcntl(", socket.get(), ", F_SETFD)"));
  }
  RETURN_IF_ERROR(AskWhoSpeaks(socket));
  ASSIGN_OR_RETURN(PeerCredentials maker, ReadPeer(socket));
  RETURN_IF_ERROR(CheckPeer(maker, policy));
  return maker;
}

}  // namespace

absl::StatusOr<Channel> Channel::State::Take(OsHandle socket,
                                             const PeerPolicy& policy,
                                             HeldBy held_by) {
  absl::StatusOr<PeerCredentials> maker = CheckSocket(socket, policy);
  if (!maker.ok()) {
    HangUp(std::move(socket), held_by, Connections::kOfStrangers);
    return maker.status();
  }
  return MakeChannel(std::move(socket), *std::move(maker), policy, held_by);
}

absl::StatusOr<Channel> Channel::Connect(const std::string& address,
                                         const PeerPolicy& policy,
                                         Deadline deadline) {
  IsForkedChild();  // A use of vmmshare: records this process.
  ASSIGN_OR_RETURN(const SocketAddress name, MakeSocketAddress(address));
  const std::string directory =
      address.substr(0, std::max<std::size_t>(address.rfind('/'), 1));
  RETURN_IF_ERROR(CheckDirectory(directory, policy));
  RETURN_IF_ERROR(CheckSocketFile(address, policy));

  OsHandle socket =
      AdoptDescriptor(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!socket.has_value()) {
    return LastError().Of("socket(AF_UNIX, SOCK_SEQPACKET)");
  }
  const std::string call = absl::StrCat("connect(", address, ")");
  for (;;) {
    RETURN_IF_ERROR(BoundConnect(socket, deadline));
    if (::connect(Fd(socket), name.get(), name.size) == 0) break;
    const int error = errno;
    if (error == ECONNREFUSED || error == ENOENT) {
      return absl::NotFoundError(absl::StrCat(OsError(error, call).message(),
                                              ". ", NobodyListens(directory)));
    }
    if (error == EACCES) return OsError(error, call, ConnectAdvice(address));
    if (error == EPROTOTYPE) {
      return OsError(error, call,
                     "Another program's socket is there, of another type than "
                     "vmmshare's: name the address of an owner or a keeper.");
    }
    if (error != EAGAIN && error != EINTR) return OsError(error, call);
    if (deadline.Passed()) {
      return absl::DeadlineExceededError(absl::StrCat(
          call, ": the listener took no connection before the deadline"));
    }
  }
  return State::Take(std::move(socket), policy, HeldBy::kThisProcessAlone);
}

absl::StatusOr<std::pair<Channel, Channel>> Channel::Pair(
    const PeerPolicy& policy) {
  IsForkedChild();
  int fds[2] = {-1, -1};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0) {
    return LastError().Of("socketpair(AF_UNIX, SOCK_SEQPACKET)");
  }
  OsHandle first = AdoptDescriptor(fds[0]);
  OsHandle second = AdoptDescriptor(fds[1]);
  if (!first.has_value() || !second.has_value()) {
    return LastError().Of("fcntl(F_DUPFD_CLOEXEC)");
  }
  ASSIGN_OR_RETURN(const PeerCredentials maker, ReadPeer(first));
  ASSIGN_OR_RETURN(Channel one, State::MakeChannel(std::move(first), maker,
                                                   policy, HeldBy::kOthersToo));
  ASSIGN_OR_RETURN(
      Channel other,
      State::MakeChannel(std::move(second), maker, policy, HeldBy::kOthersToo));
  return std::make_pair(std::move(one), std::move(other));
}

absl::StatusOr<Channel> Channel::Adopt(OsHandle socket,
                                       const PeerPolicy& policy) {
  IsForkedChild();
  if (::fcntl(Fd(socket), F_GETFD) < 0 && errno == EBADF) {
    // A number that is no descriptor cannot be owned, let alone closed.
    return absl::InvalidArgumentError(
        absl::StrCat("descriptor ", std::move(socket).Relinquish(),
                     " is not open: pass the number of a connected socket"));
  }
  return State::Take(std::move(socket), policy, HeldBy::kOthersToo);
}

}  // namespace vmm::platform
