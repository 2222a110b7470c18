#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <new>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"
#include "platform/ipc/cancels_of.h"
#include "platform/ipc/channel.h"
#include "platform/ipc/channel_state_posix.h"
#include "platform/ipc/frame.h"
#include "platform/ipc/packet_posix.h"
#include "platform/ipc/peer_posix.h"
#include "platform/ipc/speaker_posix.h"
#include "platform/os/close_elsewhere_posix.h"
#include "platform/os/os_error.h"
#include "platform/os/process.h"
#include "platform/os/wait_posix.h"

namespace vmm::platform {
namespace {

// Descriptors of one user's whose closing blocks, from which on nothing more is
// received from him; and of one process's, so that it alone is not heard.
constexpr std::size_t kMostNotClosed = 64;
constexpr std::size_t kMostOfAProcessNotClosed = 16;

// RESOURCE_EXHAUSTED when so many of the sender's handles are not closed that no
// more can be taken.
absl::Status CheckThatHandlesClose(const PeerCredentials& sender) {
  const std::size_t of_user = NotYetClosed(sender.user);
  // Of a hidden namespace one process is not told from another.
  const std::size_t of_process =
      sender.pid == 0 ? 0 : NotYetClosed(sender.user, sender.pid);
  const bool is_process = of_process >= kMostOfAProcessNotClosed;
  if (!is_process && of_user < kMostNotClosed) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      is_process ? of_process : of_user, " descriptors that ",
      is_process ? Describe(sender)
                 : absl::StrCat("processes of user ", sender.user.text()),
      " sent block in close(), so nothing more is received from there: end the "
      "processes that serve those files"));
}

// Has what `sender` sent and cannot be closed here closed elsewhere. OK when
// there was nothing.
absl::Status RefuseWhatBlocks(std::vector<OsHandle>& handles,
                              const PeerCredentials& sender) {
  absl::Status carried;
  const auto blocking = std::partition(
      handles.begin(), handles.end(), [&carried](const OsHandle& handle) {
        const absl::Status at_once =
            handle.has_value() ? ClosesAtOnce(handle) : absl::OkStatus();
        carried.Update(at_once);
        return at_once.ok();
      });
  CloseElsewhere({std::make_move_iterator(blocking),
                  std::make_move_iterator(handles.end())},
                 sender.user, sender.pid);
  handles.erase(blocking, handles.end());
  return carried;
}

// Whether `packet` lacks handles and nothing else, so that another look may find it
// whole. Then those that came can be closed here.
bool MayBeWholeLater(const Packet& packet) {
  return (packet.flags & MSG_CTRUNC) != 0 && !packet.unknown_control &&
         packet.handles.size() <= kMaxHandles &&
         std::all_of(packet.handles.begin(), packet.handles.end(),
                     [](const OsHandle& handle) {
                       return !handle.has_value() || ClosesAtOnce(handle).ok();
                     });
}

// The header of `packet`; or what rule it breaks. `carried` is RefuseWhatBlocks()'s.
absl::StatusOr<FrameHeader> ReadHeader(const Packet& packet,
                                       const absl::Status& carried) {
  if (packet.handles.size() > kMaxHandles) {
    return absl::DataLossError(
        absl::StrCat("it came with more than ", kMaxHandles, " handles"));
  }
  if (packet.unknown_control) {
    return absl::DataLossError("it has control data other than handles");
  }
  if ((packet.flags & MSG_CTRUNC) != 0) {
    const std::string limit = NearLimit();
    return absl::DataLossError(absl::StrCat(
        "handles were dropped on the way, ", packet.handles.size(), " came. ",
        limit.empty() ? "A security module may have refused them" : limit));
  }
  if ((packet.flags & MSG_TRUNC) != 0) {
    return absl::DataLossError(
        absl::StrCat("it has more than ", kMaxFrame, " bytes"));
  }
  RETURN_IF_ERROR(carried);
  return DecodeFrame(packet.bytes(), packet.handles.size());
}

}  // namespace

const bool kHangingUpMayLoseHandles = false;

absl::StatusOr<Message> Channel::Receive(Deadline deadline,
                                         const CancelEvent* cancel) {
  if (!is_open()) return ClosedError();
  absl::Status closes = CheckThatHandlesClose(peer());
  if (!closes.ok()) {
    Break();
    return closes;
  }
  const std::optional<Process> whose_end = state_->WhoseEnd();
  Cancels cancelled = CancelsOf(cancel);
  if (whose_end.has_value()) cancelled.process = &whose_end->handle();
  const std::string what = absl::StrCat("message from ", Describe(peer()));
  bool reset = false;
  bool looked_again = false;
  // Looked at first only for `cancel`, which a busy peer must not drown, and by
  // who expects nothing.
  bool wait = cancel != nullptr || deadline.Passed();
  Packet packet;
  std::string limit;  // That it lacks handles for.
  for (;;) {
    if (wait) {
      absl::StatusOr<short> ready =
          WaitForEvents(socket_, POLLIN, deadline, cancelled, what);
      if (absl::IsUnavailable(ready.status())) {
        Break();
        return HungUpError(*this);
      }
      if (!ready.ok()) return ready.status();
    }
    if (LookAtNext(socket_, packet)) {
      if (!MayBeWholeLater(packet)) break;
      limit = NearLimit();
      // Else who had the descriptors may have let go of them since.
      if (!limit.empty() || std::exchange(looked_again, true)) break;
      packet = Packet();
      continue;
    }
    const int error = errno;
    if (error == EINTR) continue;
    // A peer that closed with messages of ours unread: said once, and what
    // it sent before can still be read.
    if (error == ECONNRESET && !std::exchange(reset, true)) continue;
    if (error != EAGAIN) {
      Break();
      if (error == ECONNRESET || error == ENOTCONN) return HungUpError(*this);
      return OsError(error, absl::StrCat("recvmsg(", socket_.get(), ")"));
    }
    if (wait && deadline.Passed()) {
      return absl::DeadlineExceededError(
          absl::StrCat("no ", what, " before the deadline"));
    }
    wait = true;
  }
  return state_->TakeMessage(*this, packet, limit);
}

absl::StatusOr<Message> Channel::State::TakeMessage(Channel& channel,
                                                    Packet& packet,
                                                    absl::string_view limit) {
  const bool whole = (packet.flags & MSG_CTRUNC) == 0;
  // Its bytes before it is taken: refused memory for them, it is still there.
  Message result;
  const absl::Span<const std::uint8_t> bytes = packet.bytes();
  result.payload.assign(
      bytes.begin() + std::min(kFrameHeaderSize, bytes.size()), bytes.end());
  // While this process has all of its handles. Else it goes with the queue.
  absl::Status taken = whole ? TakeOut(channel.socket_) : absl::OkStatus();
  absl::Status carried =
      RefuseWhatBlocks(packet.handles, packet.speaker.credentials);
  if (packet.size == 0 && packet.handles.empty() && channel.PeerIsGone()) {
    channel.Break();
    return HungUpError(channel);
  }
  if (!taken.ok()) {
    channel.Break();
    return taken;
  }
  absl::Status may;
  try {
    may = Hear(std::move(packet.speaker));
  } catch (const std::bad_alloc&) {
    channel.Break();  // The message is lost: no later one comes in its place.
    throw;
  }
  if (!may.ok()) {
    channel.Break();
    return may;
  }

  // Not taken out: the next call may have room for it.
  if (!limit.empty()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "a message from ", Describe(channel.peer()),
        " has more handles than this process has descriptors left for: it "
        "could take ",
        packet.handles.size(), ". ", limit));
  }
  const absl::StatusOr<FrameHeader> header = ReadHeader(packet, carried);
  if (!header.ok()) {
    packet.handles.clear();  // Break() may need a descriptor.
    channel.Break();
    return absl::DataLossError(absl::StrCat(
        "a message from ", Describe(channel.peer()),
        " was refused, and the connection ended: ", header.status().message()));
  }
  result.type = header->type;
  result.handles = std::move(packet.handles);
  return result;
}

}  // namespace vmm::platform
