// The sending half of a channel: see channel_posix.cc for the rest.
#include <linux/sock_diag.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"
#include "platform/ipc/cancels_of.h"
#include "platform/ipc/channel.h"
#include "platform/ipc/channel_state_posix.h"
#include "platform/ipc/frame.h"
#include "platform/ipc/peer_posix.h"
#include "platform/os/descriptor_posix.h"
#include "platform/os/os_error.h"
#include "platform/os/wait_posix.h"

namespace vmm::platform {
namespace {

// How long a sender of handles waits when too many are on their way.
constexpr absl::Duration kLookForRoomAgain = absl::Milliseconds(2);
// The longest pause between looks whether a peer has received what was sent.
constexpr absl::Duration kLongestPause = absl::Milliseconds(5);

// Waits a moment for handles to come that are on their way anywhere: nothing
// tells when. DEADLINE_EXCEEDED when it is time to try again, OK when the peer has
// hung up.
absl::Status WaitForHangUpOrRoom(const OsHandle& socket, Deadline deadline,
                                 const CancelEvent* cancel) {
  return WaitForEvents(socket, POLLRDHUP,
                       std::min(deadline, Deadline::In(kLookForRoomAgain)),
                       CancelsOf(cancel), "room for handles on their way")
      .status();
}

// A message as sendmsg() takes it: what it is made of must outlive it.
class Outgoing {
 public:
  // REQUIRES: CheckSendable().
  Outgoing(std::uint16_t type, absl::Span<const std::uint8_t> payload,
           absl::Span<const OsHandle* const> handles)
      : header_(
            EncodeFrameHeader({type, static_cast<std::uint32_t>(payload.size()),
                               static_cast<std::uint16_t>(handles.size())})),
        parts_{{header_.data(), header_.size()},
               {const_cast<std::uint8_t*>(payload.data()), payload.size()}} {
    message_.msg_iov = parts_;
    message_.msg_iovlen = 2;
    message_.msg_control = control_;
    if (!handles.empty()) {
      std::array<int, kMaxHandles> fds;
      std::transform(handles.begin(), handles.end(), fds.begin(),
                     [](const OsHandle* handle) { return Fd(*handle); });
      AddControl(SCM_RIGHTS, fds.data(), handles.size() * sizeof(int));
    }
    // Of a sender that says nothing the kernel names the real user; peers ask for
    // the effective one, as they do of the connection.
    if (::geteuid() != ::getuid()) {
      const ucred self = {::getpid(), ::geteuid(), ::getegid()};
      AddControl(SCM_CREDENTIALS, &self, sizeof(self));
    }
  }
  Outgoing(const Outgoing&) = delete;
  Outgoing& operator=(const Outgoing&) = delete;

  const msghdr& message() const { return message_; }

 private:
  // REQUIRES: each type once, of the sizes that control_ has room for.
  void AddControl(int type, const void* data, std::size_t size) {
    auto* part = reinterpret_cast<cmsghdr*>(control_ + message_.msg_controllen);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = type;
    part->cmsg_len = CMSG_LEN(size);
    std::memcpy(CMSG_DATA(part), data, size);
    message_.msg_controllen += CMSG_SPACE(size);
  }

  std::array<std::uint8_t, kFrameHeaderSize> header_;
  iovec parts_[2];
  alignas(cmsghdr) std::uint8_t control_[CMSG_SPACE(kMaxHandles * sizeof(int)) +
                                         CMSG_SPACE(sizeof(ucred))] = {};
  msghdr message_{};
};

}  // namespace

absl::Status Channel::Send(std::uint16_t type,
                           absl::Span<const std::uint8_t> payload,
                           absl::Span<const OsHandle* const> handles,
                           Deadline deadline, const CancelEvent* cancel) {
  if (!is_open()) return ClosedError();
  RETURN_IF_ERROR(CheckSendable(payload, handles));

  const Outgoing outgoing(type, payload, handles);
  const std::string what =
      absl::StrCat("room to send ", payload.size(), " bytes and ",
                   handles.size(), " handles to ", Describe(peer()));
  for (;;) {
    if (::sendmsg(Fd(socket_), &outgoing.message(),
                  MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) {
      return absl::OkStatus();  // A packet goes as a whole or not at all.
    }
    const int error = errno;
    if (error == EINTR) continue;
    absl::Status status;
    if (error == EAGAIN) {
      absl::StatusOr<short> ready =
          WaitForEvents(socket_, POLLOUT, deadline, CancelsOf(cancel), what);
      if (ready.ok()) continue;
      status = ready.status();
    } else if (error == ETOOMANYREFS && !handles.empty()) {
      if (deadline.Passed()) {
        return OsError(error, "sendmsg()",
                       "This user's processes have as many handles on their "
                       "way as RLIMIT_NOFILE allows, to peers that do not "
                       "receive them. Nothing was sent.");
      }
      status = WaitForHangUpOrRoom(socket_, deadline, cancel);
      if (absl::IsDeadlineExceeded(status)) continue;
      // The kernel says so only once there is room.
      if (status.ok()) return HungUpError(*this);
    } else if (error == EPIPE || error == ECONNRESET || error == ENOTCONN) {
      return HungUpError(*this);  // What it said before can be received.
    } else {
      status = OsError(
          error, absl::StrCat("sendmsg(", socket_.get(), ", ", payload.size(),
                              " bytes, ", handles.size(), " handles)"));
    }
    if (!absl::IsInvalidArgument(status)) Break();
    return status;
  }
}

absl::Status Channel::WaitUntilReceived(Deadline deadline,
                                        const CancelEvent* cancel) const {
  if (!is_open()) return ClosedError();
  const std::string what =
      absl::StrCat("receipt by ", Describe(peer()), " of what was sent");
  absl::Duration pause = absl::Microseconds(20);
  for (;;) {
    std::uint32_t about[SK_MEMINFO_VARS] = {};
    socklen_t size = sizeof(about);
    if (::getsockopt(Fd(socket_), SOL_SOCKET, SO_MEMINFO, about, &size) != 0) {
      if (errno == ENOPROTOOPT) return absl::OkStatus();  // Linux before 4.12.
      return LastError().Of(
          absl::StrCat("getsockopt(", socket_.get(), ", SO_MEMINFO)"));
    }
    // The bytes of the packets that nobody has received.
    if (about[SK_MEMINFO_WMEM_ALLOC] == 0) return absl::OkStatus();
    // Nothing tells when there are none.
    absl::Status hung_up =
        WaitForEvents(socket_, POLLRDHUP,
                      std::min(deadline, Deadline::In(pause)),
                      CancelsOf(cancel), what)
            .status();
    if (hung_up.ok()) return HungUpError(*this);
    if (!absl::IsDeadlineExceeded(hung_up) || deadline.Passed()) {
      return hung_up;
    }
    // Slowly, for a peer maps memory for each handle: what it waits for the next
    // ones is a ninth of that at most.
    pause = std::min(pause * 9 / 8, kLongestPause);
  }
}

}  // namespace vmm::platform
