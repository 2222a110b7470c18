// The sending half of a channel: see channel_win.cc for the rest.
#include <array>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"
#include "platform/ipc/cancels_of.h"
#include "platform/ipc/channel.h"
#include "platform/ipc/channel_state_win.h"
#include "platform/ipc/frame.h"
#include "platform/ipc/peer_win.h"
#include "platform/ipc/pipe_win.h"
#include "platform/ipc/transit_win.h"

namespace vmm::platform {

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
    return HungUpError(*this);  // What it said before can be received.
  }
  Break();
  return status;
}

absl::Status Channel::WaitUntilReceived(Deadline /*deadline*/,
                                        const CancelEvent* /*cancel*/) const {
  return is_open() ? absl::OkStatus() : ClosedError();
}

}  // namespace vmm::platform
