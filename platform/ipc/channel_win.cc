#include <windows.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/annotate.h"
#include "platform/base/status_macros.h"
#include "platform/ipc/cancels_of.h"
#include "platform/ipc/channel.h"
#include "platform/ipc/channel_state_win.h"
#include "platform/ipc/frame.h"
#include "platform/ipc/peer_win.h"
#include "platform/ipc/pipe_win.h"
#include "platform/ipc/transit_win.h"
#include "platform/os/os_error.h"
#include "platform/os/security_win.h"
#include "platform/os/wait_win.h"

namespace vmm::platform {
namespace {

// A client that reads nothing keeps its handles open longer; nobody else
// waits for it.
constexpr absl::Duration kTakenTimeout = absl::Seconds(1);

// How often WaitForHangUp() looks. No event of the system's tells when the
// other end of a pipe is closed, but for a read, which would take messages.
constexpr absl::Duration kHangUpInterval = absl::Milliseconds(5);

constexpr char kNoDuplicates[] =
    " (OpenProcess with PROCESS_DUP_HANDLE is refused). Run both as one user "
    "with one integrity level, or let the one with more rights listen.";

}  // namespace

const bool kHangingUpMayLoseHandles = true;

void Channel::Close() {
  // Closed last, when nobody can take them any more for those that were sent.
  std::vector<OsHandle> parked;
  if (state_ != nullptr) parked = state_->LetGo();
  state_.reset();
  socket_.Reset();
}

// A pipe belongs to the process that opened it.
PeerCredentials Channel::peer() const { return peer_; }

std::uint64_t Channel::speakers() const { return 1; }

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
    return OsError(static_cast<int>(::GetLastError()),
                   "SetHandleInformation(HANDLE_FLAG_INHERIT)");
  }
  ASSIGN_OR_RETURN(Peer peer, is_server ? ReadClient(socket, TimeOfDay())
                                        : ReadServer(socket));
  RETURN_IF_ERROR(CheckPeer(peer.credentials, policy));
  return State::MakeChannel(
      std::move(socket), std::move(peer),
      is_server ? State::End::kServer : State::End::kClient);
}

void Channel::Break() {
  const MutexLock lock(state_->mutex);
  broken_ = true;
  state_->broken = true;
  // Wakes the other thread, whose call ends, also if it has not begun to wait;
  // the last to leave hangs up. Not by DisconnectNamedPipe(), which would drop
  // what the client has not read, and the client would never learn of the
  // handles in it that are his now.
  ::SetEvent(Raw(state_->broken_event));
}

absl::Status Channel::Send(std::uint16_t type,
                           absl::Span<const std::uint8_t> payload,
                           absl::Span<const OsHandle* const> handles,
                           Deadline deadline, const CancelEvent* cancel) {
  const State::Use use(*this);
  if (!use.allowed()) return ClosedError();
  RETURN_IF_ERROR(CheckSendable(payload, handles));
  State& state = *state_;
  const bool is_server = state.end == State::End::kServer;
  if (is_server && !handles.empty() && !state.peer.may_duplicate) {
    // Nothing was sent: the peer can be told why.
    return absl::PermissionDeniedError(
        absl::StrCat("this process may not duplicate handles into the peer, ",
                     Describe(peer_), kNoDuplicates));
  }

  const std::array<std::uint8_t, kFrameHeaderSize> header =
      EncodeFrameHeader({type, static_cast<std::uint32_t>(payload.size()),
                         static_cast<std::uint16_t>(handles.size())});
  std::vector<std::uint8_t> packet(header.begin(), header.end());
  packet.insert(packet.end(), payload.begin(), payload.end());
  const std::size_t values = packet.size();
  packet.resize(values + handles.size() * kHandleBytes);

  absl::Status status;
  PushedHandles pushed(state.peer.process);
  std::vector<OsHandle> parked;
  for (std::size_t i = 0; i < handles.size() && status.ok(); ++i) {
    std::int64_t value = 0;
    if (is_server) {
      status = pushed.Push(*handles[i]);
      if (status.ok()) value = pushed.values().back();
    } else {
      absl::StatusOr<OsHandle> one = Park(*handles[i]);
      status = one.status();
      if (one.ok()) {
        value = one->get();
        parked.push_back(*std::move(one));
      }
    }
    StoreHandle(value, packet.data() + values + i * kHandleBytes);
  }
  if (absl::IsInvalidArgument(status)) return status;

  const std::size_t parked_count = parked.size();
  if (status.ok() && !is_server) {
    state.ReadTaken();
    // Before it is sent: the answer may come before the call returns.
    const MutexLock lock(state.mutex);
    // All or, for want of memory, none.
    state.parked.insert(state.parked.end(),
                        std::make_move_iterator(parked.begin()),
                        std::make_move_iterator(parked.end()));
  }
  if (status.ok()) {
    try {
      status = WriteMessage(
          socket_, state.write_event, packet, deadline,
          {CancelsOf(cancel), &state.broken_event},
          absl::StrCat("room to send ", payload.size(), " bytes and ",
                       handles.size(), " handles to ", Describe(peer_)));
    } catch (...) {  // No memory, and nothing was sent.
      state.UnparkLast(parked_count);
      throw;
    }
    if (status.ok()) {
      pushed.Keep();
      return status;
    }
    state.UnparkLast(parked_count);
  }
  if (broken_) return ClosedError();
  if (absl::IsUnavailable(status) || OtherEndIsClosed(socket_)) {
    return HungUpError(peer_);  // What it said before can be received.
  }
  Break();
  return status;
}

absl::StatusOr<Message> Channel::Receive(Deadline deadline,
                                         const CancelEvent* cancel) {
  const State::Use use(*this);
  if (!use.allowed()) return ClosedError();
  State& state = *state_;
  const MutexLock reading(state.reading);
  std::vector<std::uint8_t> buffer(kMaxFrame + kMaxHandles * kHandleBytes);
  const std::string what = absl::StrCat("message from ", Describe(peer_));
  for (;;) {
    absl::StatusOr<std::size_t> size =
        ReadMessage(socket_, state.read_event, absl::MakeSpan(buffer), deadline,
                    {CancelsOf(cancel), &state.broken_event}, what);
    if (broken_ && !size.ok()) return ClosedError();
    if (absl::IsDeadlineExceeded(size.status()) ||
        absl::IsCancelled(size.status())) {
      return size.status();
    }
    if (absl::IsUnavailable(size.status())) {
      Break();
      return HungUpError(peer_);
    }
    if (!size.ok() && !absl::IsDataLoss(size.status())) {
      Break();
      return size.status();
    }
    absl::StatusOr<Message> message;
    if (!size.ok()) {
      message = absl::DataLossError(
          absl::StrCat("it has more than ", buffer.size(), " bytes"));
    } else {
      const auto packet = absl::MakeConstSpan(buffer.data(), *size);
      const std::uint32_t taken =
          state.end == State::End::kClient ? DecodeTaken(packet) : 0;
      if (taken != 0) {
        const absl::Status unparked = state.Unpark(taken);
        if (unparked.ok()) continue;
        message = unparked;
      } else {
        try {
          message = state.Decode(packet);
        } catch (const std::bad_alloc&) {
          Break();  // It is lost, and no later one is to come in its place.
          throw;
        }
      }
    }
    if (absl::IsUnavailable(message.status())) {
      Break();
      return HungUpError(peer_);
    }
    if (absl::IsPermissionDenied(message.status())) {
      Break();
      return absl::PermissionDeniedError(absl::StrCat(
          "a message from ", Describe(peer_), " was refused, and the ",
          "connection ended: ", message.status().message(), kNoDuplicates));
    }
    if (!message.ok()) {
      state.peer_is_hostile = true;
      Break();
      return absl::DataLossError(
          absl::StrCat("a message from ", Describe(peer_),
                       " was refused, and the connection ended: ",
                       message.status().message()));
    }
    if (state.end == State::End::kServer && !message->handles.empty()) {
      // If it cannot be told, the client keeps them until it hangs up.
      try {
        WriteMessage(
            socket_, state.taken_event,
            EncodeTaken(static_cast<std::uint32_t>(message->handles.size())),
            Deadline::In(kTakenTimeout), {nullptr, &state.broken_event},
            "room for an answer")
            .IgnoreError();
      } catch (const std::bad_alloc&) {
      }
    }
    return message;
  }
}

bool Channel::PeerIsGone() const { return OtherEndIsClosed(socket_); }

absl::Status Channel::WaitUntilReceived(Deadline /*deadline*/,
                                        const CancelEvent* /*cancel*/) const {
  return is_open() ? absl::OkStatus() : ClosedError();
}

absl::Status Channel::WaitForHangUp(Deadline deadline,
                                    const CancelEvent* cancel) const {
  const State::Use use(const_cast<Channel&>(*this));
  if (!use.allowed()) return ClosedError();
  const std::string what = absl::StrCat("hang-up of ", Describe(peer_));
  const Cancels cancelled = CancelsOf(cancel);
  std::vector<std::intptr_t> watched;
  // This process's own end is not told by its own exit.
  if (state_->peer.process.has_value() && peer_.pid != CurrentProcessId()) {
    watched.push_back(state_->peer.process.get());
  }
  ASSIGN_OR_RETURN(const OsHandle never, MakeEvent());
  if (watched.empty()) watched.push_back(never.get());
  for (;;) {
    const bool gone = PeerIsGone();
    const Deadline look = Deadline::In(kHangUpInterval);
    absl::StatusOr<std::size_t> ended = WaitForHandles(
        watched, gone ? absl::InfinitePast() : std::min(look, deadline),
        cancelled, what);
    if (absl::IsCancelled(ended.status())) return ended.status();
    if (broken_) return ClosedError();
    if (gone) return absl::OkStatus();
    if (ended.ok()) {
      // It ended; its end of the pipe closes with it, if nobody else has it.
      watched = {never.get()};
    } else if (!absl::IsDeadlineExceeded(ended.status())) {
      return ended.status();
    }
    if (deadline.Passed() && !PeerIsGone()) {
      return absl::DeadlineExceededError(
          absl::StrCat("no ", what, " before the deadline"));
    }
  }
}

absl::Status Channel::EndWithItsProcess() { return absl::OkStatus(); }

absl::StatusOr<Process> Channel::OpenPeer() const {
  const State::Use use(const_cast<Channel&>(*this));
  if (!use.allowed()) return ClosedError();
  const OsHandle& process = state_->peer.process;
  if (!process.has_value()) {
    return absl::PermissionDeniedError(
        absl::StrCat("this process may not open the peer, ", Describe(peer_)));
  }
  // Without the right to duplicate, which only the channel needs.
  HANDLE copy = nullptr;
  if (::DuplicateHandle(::GetCurrentProcess(), Raw(process),
                        ::GetCurrentProcess(), &copy,
                        SYNCHRONIZE | PROCESS_QUERY_LIMITED_INFORMATION,
                        /*inherit=*/FALSE, 0) == 0) {
    return OsError(static_cast<int>(::GetLastError()),
                   "DuplicateHandle(process)");
  }
  return Process::FromHandle(
      OsHandle::Adopt(reinterpret_cast<std::intptr_t>(copy)), peer_.pid);
}

}  // namespace vmm::platform
