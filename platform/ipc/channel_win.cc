#include <windows.h>

#include <algorithm>
#include <new>

#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"
#include "platform/ipc/cancels_of.h"
#include "platform/ipc/channel.h"
#include "platform/ipc/channel_state_win.h"
#include "platform/ipc/frame.h"
#include "platform/ipc/peer_win.h"
#include "platform/ipc/pipe_win.h"
#include "platform/ipc/transit_win.h"
#include "platform/os/os_error.h"
#include "platform/os/wait_win.h"

namespace vmm::platform {
namespace {

// A client that reads nothing keeps its handles open longer; nobody else
// waits for it.
constexpr absl::Duration kTakenTimeout = absl::Seconds(1);

// How often WaitForHangUp() looks. No event of the system's tells when the
// other end of a pipe is closed, but for a read, which would take messages.
constexpr absl::Duration kHangUpInterval = absl::Milliseconds(5);

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
      return HungUpError(*this);
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
      return HungUpError(*this);
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
    return LastError().Of("DuplicateHandle(process)");
  }
  return Process::FromHandle(
      OsHandle::Adopt(reinterpret_cast<std::intptr_t>(copy)), peer_.pid);
}

}  // namespace vmm::platform
