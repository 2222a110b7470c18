// How a Channel comes to be.
#include <windows.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"
#include "platform/ipc/channel.h"
#include "platform/ipc/channel_state_win.h"
#include "platform/ipc/peer_win.h"
#include "platform/ipc/pipe_win.h"
#include "platform/os/os_error.h"

namespace vmm::platform {

absl::StatusOr<Channel> Channel::Connect(const std::string& address,
                                         const PeerPolicy& policy,
                                         Deadline deadline) {
  ASSIGN_OR_RETURN(const std::wstring name, PipeName(address));
  ASSIGN_OR_RETURN(OsHandle pipe, OpenPipe(name, address, deadline));
  ASSIGN_OR_RETURN(Peer server, ReadServer(pipe));
  RETURN_IF_ERROR(CheckPeer(server.credentials, policy));
  return State::MakeChannel(std::move(pipe), std::move(server),
                            State::End::kClient);
}

absl::StatusOr<std::pair<Channel, Channel>> Channel::Pair(
    const PeerPolicy& /*policy*/) {
  // Nobody else can come to hold an end.
  ASSIGN_OR_RETURN(Listener listener, Listener::Bind({}, {}));
  const Deadline deadline = Deadline::In(absl::Seconds(5));
  ASSIGN_OR_RETURN(Channel client, Connect(listener.address(), {}, deadline));
  ASSIGN_OR_RETURN(Channel server, listener.Accept(deadline));
  return std::make_pair(std::move(server), std::move(client));
}

absl::StatusOr<Channel> Channel::Adopt(OsHandle socket,
                                       const PeerPolicy& policy) {
  DWORD flags = 0;
  ULONG own_pid = 0;
  if (::GetNamedPipeInfo(Raw(socket), &flags, nullptr, nullptr, nullptr) == 0 ||
      (flags & PIPE_TYPE_MESSAGE) == 0 || OtherEndIsClosed(socket)) {
    return absl::InvalidArgumentError(
        absl::StrCat("handle ", socket.get(),
                     " is not a connected named pipe in message mode"));
  }
  RETURN_IF_ERROR(CheckPipeMode(socket));
  const bool is_server = (flags & PIPE_SERVER_END) != 0;
  const BOOL known = is_server
                         ? ::GetNamedPipeServerProcessId(Raw(socket), &own_pid)
                         : ::GetNamedPipeClientProcessId(Raw(socket), &own_pid);
  if (known == 0 || own_pid != ::GetCurrentProcessId()) {
    // The other end would duplicate handles into the process that opened it.
    return absl::InvalidArgumentError(absl::StrCat(
        "handle ", socket.get(), " is a pipe that process ", own_pid,
        " opened, not this one; give this process the address to connect to"));
  }
  if (::SetHandleInformation(Raw(socket), HANDLE_FLAG_INHERIT, 0) == 0) {
    return LastError().Of("SetHandleInformation(HANDLE_FLAG_INHERIT)");
  }
  ASSIGN_OR_RETURN(Peer peer, is_server ? ReadClient(socket, TimeOfDay())
                                        : ReadServer(socket));
  RETURN_IF_ERROR(CheckPeer(peer.credentials, policy));
  return State::MakeChannel(
      std::move(socket), std::move(peer),
      is_server ? State::End::kServer : State::End::kClient);
}

}  // namespace vmm::platform
