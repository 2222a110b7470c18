#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
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
#include "platform/ipc/peer_posix.h"
#include "platform/ipc/speaker_posix.h"
#include "platform/os/close_elsewhere_posix.h"
#include "platform/os/descriptor_posix.h"
#include "platform/os/os_error.h"
#include "platform/os/process.h"
#include "platform/os/wait_posix.h"

namespace vmm::platform {
namespace {

// Room for what comes beside the bytes of one packet: one handle more than may
// come, which is seen to be too many, and who sent it. The kernel opens as many
// as fit, and a hostile peer may send 253 (SCM_MAX_FD), whoever it is: with room
// for them it would have this process at its limit of descriptors at will. It
// puts the credentials before the handles and the pidfd behind them, so of too
// many the user who sent them is known all the same. Where it has no more to
// say some handles more fit, up to 40.
constexpr std::size_t kControlSpace =
    CMSG_SPACE((kMaxHandles + 1) * sizeof(int)) + kSpeakerSpace;

// Descriptors of one user's whose closing blocks, from which on nothing more is
// received from him; and of one process's, so that it alone is not heard.
constexpr std::size_t kMostNotClosed = 64;
constexpr std::size_t kMostOfAProcessNotClosed = 16;

// What came beside the bytes of one packet.
struct Received {
  std::vector<OsHandle> handles;
  Speaker speaker;
  bool unknown_control = false;
};

// Takes ownership of every descriptor in `message`; `received.handles` has the
// room already, so nothing can fail in between.
void TakeControl(msghdr& message, Received& received) {
  for (cmsghdr* control = CMSG_FIRSTHDR(&message); control != nullptr;
       control = CMSG_NXTHDR(&message, control)) {
    if (TakeSpeaker(*control, received.speaker)) continue;
    if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS) {
      received.unknown_control = true;
      continue;
    }
    const std::size_t count = (control->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(control) + i * sizeof(int), sizeof(fd));
      received.handles.push_back(AdoptDescriptor(fd));
      if (!received.handles.back().has_value()) message.msg_flags |= MSG_CTRUNC;
    }
  }
}

// Takes out of the queue the message that was looked at.
absl::Status TakeOut(const OsHandle& socket) {
  std::uint8_t byte;
  bool reset = false;
  while (::recv(Fd(socket), &byte, sizeof(byte), MSG_DONTWAIT) < 0) {
    // The second is said once, of a peer that closed with messages unread.
    if (errno == EINTR ||
        (errno == ECONNRESET && !std::exchange(reset, true))) {
      continue;
    }
    return LastError().Of(absl::StrCat("recv(", socket.get(), ")"));
  }
  return absl::OkStatus();
}

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

// The header of `packet`, of which recvmsg() gave `flags`; or what rule it breaks.
// `carried` is RefuseWhatBlocks()'s.
absl::StatusOr<FrameHeader> ReadHeader(absl::Span<const std::uint8_t> packet,
                                       int flags, const Received& received,
                                       const absl::Status& carried) {
  if (received.handles.size() > kMaxHandles) {
    return absl::DataLossError(
        absl::StrCat("it came with more than ", kMaxHandles, " handles"));
  }
  if (received.unknown_control) {
    return absl::DataLossError("it has control data other than handles");
  }
  if ((flags & MSG_CTRUNC) != 0) {
    const std::string limit = NearLimit();
    return absl::DataLossError(absl::StrCat(
        "handles were dropped on the way, ", received.handles.size(), " came. ",
        limit.empty() ? "A security module may have refused them" : limit));
  }
  if ((flags & MSG_TRUNC) != 0) {
    return absl::DataLossError(
        absl::StrCat("it has more than ", kMaxFrame, " bytes"));
  }
  RETURN_IF_ERROR(carried);
  return DecodeFrame(packet, received.handles.size());
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
    std::array<std::uint8_t, kMaxFrame> packet;
    // Fresh for each packet: a stale descriptor number must not be found.
    alignas(cmsghdr) std::uint8_t control[kControlSpace] = {};
    Received received;
    received.handles.reserve(sizeof(control) / sizeof(int));
    iovec part = {packet.data(), packet.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    // Looked at before it is taken: the kernel itself closes what finds no
    // descriptor here, in this call, for as long as its sender likes, unless the
    // queue has it as well.
    const ssize_t size = ::recvmsg(Fd(socket_), &message,
                                   MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (size < 0) {
      const int error = errno;
      if (error == EINTR) continue;
      // A peer that closed with messages of ours unread: said once, and what
      // it sent before can still be read.
      if (error == ECONNRESET && !std::exchange(reset, true)) continue;
      if (error == EAGAIN) {
        if (wait && deadline.Passed()) {
          return absl::DeadlineExceededError(
              absl::StrCat("no ", what, " before the deadline"));
        }
        wait = true;
        continue;
      }
      Break();
      if (error == ECONNRESET || error == ENOTCONN) return HungUpError(*this);
      return OsError(error, absl::StrCat("recvmsg(", socket_.get(), ")"));
    }
    TakeControl(message, received);
    const bool whole = (message.msg_flags & MSG_CTRUNC) == 0;
    const std::size_t header_size =
        std::min(kFrameHeaderSize, static_cast<std::size_t>(size));
    // Its bytes before it is taken: refused memory for them, it is still there.
    Message result;
    result.payload.assign(packet.data() + header_size, packet.data() + size);
    // While this process has all of its handles. Else it goes with the queue.
    absl::Status taken = whole ? TakeOut(socket_) : absl::OkStatus();
    absl::Status carried =
        RefuseWhatBlocks(received.handles, received.speaker.credentials);
    if (size == 0 && received.handles.empty() && PeerIsGone()) {
      Break();
      return HungUpError(*this);
    }
    if (!taken.ok()) {
      Break();
      return taken;
    }
    absl::Status may;
    try {
      may = state_->Hear(std::move(received.speaker));
    } catch (const std::bad_alloc&) {
      Break();  // The message is lost, and no later one is to come in its place.
      throw;
    }
    if (!may.ok()) {
      Break();
      return may;
    }

    if (!whole && carried.ok() && !received.unknown_control &&
        received.handles.size() <= kMaxHandles) {
      const std::string limit = NearLimit();
      // Not taken out: the next call may have room for it.
      if (!limit.empty()) {
        return absl::ResourceExhaustedError(absl::StrCat(
            "a message from ", Describe(peer()),
            " has more handles than this process has descriptors left for: it "
            "could take ",
            received.handles.size(), ". ", limit));
      }
      // Who had the descriptors may have let go of them since.
      if (!std::exchange(looked_again, true)) continue;
    }
    const absl::StatusOr<FrameHeader> header = ReadHeader(
        absl::MakeConstSpan(packet.data(), static_cast<std::size_t>(size)),
        message.msg_flags, received, carried);
    if (!header.ok()) {
      received.handles.clear();  // Break() may need a descriptor.
      Break();
      return absl::DataLossError(
          absl::StrCat("a message from ", Describe(peer()),
                       " was refused, and the connection ended: ",
                       header.status().message()));
    }
    result.type = header->type;
    result.handles = std::move(received.handles);
    return result;
  }
}

}  // namespace vmm::platform
