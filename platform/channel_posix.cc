#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "platform/channel.h"
#include "platform/frame.h"
#include "platform/os_error.h"
#include "platform/peer_posix.h"
#include "platform/wait_posix.h"

namespace vmm::platform {
namespace {

// The most descriptors Linux moves in one message (SCM_MAX_FD). A hostile peer
// may send so many: room for all means that all are seen, owned and closed.
constexpr std::size_t kMostDescriptors = 253;

// More than the empty packets that fit in a socket buffer of the default size.
constexpr int kMostEmptyPackets = 512;

int Fd(const OsHandle& handle) { return static_cast<int>(handle.get()); }

// What came beside the bytes of one packet.
struct Received {
  std::vector<OsHandle> handles;
  bool unknown_control = false;
};

// Takes ownership of every descriptor in `message`; `received.handles` has the
// room already, so nothing can fail in between.
void TakeHandles(msghdr& message, Received& received) {
  for (cmsghdr* control = CMSG_FIRSTHDR(&message); control != nullptr;
       control = CMSG_NXTHDR(&message, control)) {
    if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS) {
      received.unknown_control = true;
      continue;
    }
    const std::size_t count = (control->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(control) + i * sizeof(int), sizeof(fd));
      received.handles.push_back(OsHandle::Adopt(fd));
    }
  }
}

}  // namespace

const bool kHangingUpMayLoseHandles = false;

Channel::Channel(Channel&& other) noexcept
    : socket_(std::move(other.socket_)),
      peer_(std::move(other.peer_)),
      broken_(other.broken_.load()),
      state_(std::move(other.state_)) {}

Channel& Channel::operator=(Channel&& other) noexcept {
  if (this != &other) {
    socket_ = std::move(other.socket_);
    peer_ = std::move(other.peer_);
    broken_ = other.broken_.load();
    state_ = std::move(other.state_);
  }
  return *this;
}

void Channel::Break() {
  broken_ = true;
  // Not closed: the other thread may be waiting on the same descriptor, whose
  // number could then come to mean something else. It wakes from this.
  ::shutdown(Fd(socket_), SHUT_RDWR);
  // Descriptors in unread messages would keep their memory alive as long as
  // this socket. Read without room for them, they are dropped by the kernel.
  // An empty packet reads like the end, and a hostile peer may send them.
  std::uint8_t byte;
  for (int ends = 0; ends < kMostEmptyPackets;) {
    const ssize_t size = ::recv(Fd(socket_), &byte, sizeof(byte), MSG_DONTWAIT);
    if (size < 0 && errno != EINTR && errno != ECONNRESET) break;
    if (size <= 0) ++ends;
  }
}

absl::Status Channel::Send(std::uint16_t type,
                           absl::Span<const std::uint8_t> payload,
                           absl::Span<const OsHandle* const> handles,
                           absl::Time deadline, const CancelEvent* cancel) {
  if (!is_open()) return ClosedError();
  if (payload.size() > kMaxPayload || handles.size() > kMaxHandles) {
    return absl::InvalidArgumentError(
        absl::StrCat("a message of ", payload.size(), " bytes and ",
                     handles.size(), " handles is over the limit of ",
                     kMaxPayload, " bytes and ", kMaxHandles, " handles"));
  }
  for (std::size_t i = 0; i < handles.size(); ++i) {
    if (handles[i] == nullptr || !handles[i]->has_value()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "handle ", i, " of ", handles.size(), " to send owns nothing"));
    }
  }

  std::array<std::uint8_t, kFrameHeaderSize> header =
      EncodeFrameHeader({type, static_cast<std::uint32_t>(payload.size()),
                         static_cast<std::uint16_t>(handles.size())});
  iovec parts[2] = {
      {header.data(), header.size()},
      {const_cast<std::uint8_t*>(payload.data()), payload.size()}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  alignas(cmsghdr)
      std::uint8_t control[CMSG_SPACE(kMaxHandles * sizeof(int))] = {};
  if (!handles.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(handles.size() * sizeof(int));
    cmsghdr* rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(handles.size() * sizeof(int));
    for (std::size_t i = 0; i < handles.size(); ++i) {
      const int fd = Fd(*handles[i]);
      std::memcpy(CMSG_DATA(rights) + i * sizeof(int), &fd, sizeof(fd));
    }
  }

  const std::string what =
      absl::StrCat("room to send ", payload.size(), " bytes and ",
                   handles.size(), " handles to ", Describe(peer_));
  for (;;) {
    if (::sendmsg(Fd(socket_), &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) {
      return absl::OkStatus();  // A packet goes as a whole or not at all.
    }
    const int error = errno;
    if (error == EINTR) continue;
    absl::Status status;
    if (error == EAGAIN) {
      absl::StatusOr<short> ready =
          WaitForEvents(socket_, POLLOUT, deadline,
                        cancel != nullptr ? &cancel->handle() : nullptr, what);
      if (ready.ok()) continue;
      status = ready.status();
    } else if (error == EPIPE || error == ECONNRESET || error == ENOTCONN) {
      status = HungUpError(peer_);
    } else {
      status = OsError(
          error, absl::StrCat("sendmsg(", socket_.get(), ", ", payload.size(),
                              " bytes, ", handles.size(), " handles)"));
    }
    if (!absl::IsInvalidArgument(status)) Break();
    return status;
  }
}

absl::StatusOr<Message> Channel::Receive(absl::Time deadline,
                                         const CancelEvent* cancel) {
  if (!is_open()) return ClosedError();
  const OsHandle* cancelled = cancel != nullptr ? &cancel->handle() : nullptr;
  const std::string what = absl::StrCat("message from ", Describe(peer_));
  bool reset = false;
  // Looked at first only for `cancel`, which a busy peer must not drown.
  bool wait = cancel != nullptr;
  for (;;) {
    if (wait) {
      absl::StatusOr<short> ready =
          WaitForEvents(socket_, POLLIN, deadline, cancelled, what);
      if (!ready.ok()) return ready.status();
    }
    std::array<std::uint8_t, kMaxFrame> packet;
    // Fresh for each packet: a stale descriptor number must not be found.
    alignas(cmsghdr)
        std::uint8_t control[CMSG_SPACE(kMostDescriptors * sizeof(int)) + 256] =
            {};
    Received received;
    received.handles.reserve(sizeof(control) / sizeof(int));
    iovec part = {packet.data(), packet.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    const ssize_t size =
        ::recvmsg(Fd(socket_), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (size < 0) {
      const int error = errno;
      if (error == EINTR) continue;
      // A peer that closed with messages of ours unread: said once, and what
      // it sent before can still be read.
      if (error == ECONNRESET && !std::exchange(reset, true)) continue;
      if (error == EAGAIN) {
        if (wait && absl::Now() >= deadline) {
          return absl::DeadlineExceededError(
              absl::StrCat("no ", what, " before the deadline"));
        }
        wait = true;
        continue;
      }
      Break();
      if (error == ECONNRESET || error == ENOTCONN) return HungUpError(peer_);
      return OsError(error, absl::StrCat("recvmsg(", socket_.get(), ")"));
    }
    TakeHandles(message, received);

    absl::StatusOr<FrameHeader> header;
    if ((message.msg_flags & MSG_CTRUNC) != 0) {
      header = absl::DataLossError(absl::StrCat(
          "handles were dropped on the way, ", received.handles.size(),
          " came; this process may be at its descriptor limit (ulimit -n)"));
    } else if ((message.msg_flags & MSG_TRUNC) != 0) {
      header = absl::DataLossError(
          absl::StrCat("it has more than ", kMaxFrame, " bytes"));
    } else if (received.unknown_control) {
      header = absl::DataLossError("it has control data other than handles");
    } else if (size == 0 && received.handles.empty() && PeerIsGone()) {
      Break();
      return HungUpError(peer_);
    } else {
      header = DecodeFrame(
          absl::MakeConstSpan(packet.data(), static_cast<std::size_t>(size)),
          received.handles.size());
    }
    if (!header.ok()) {
      Break();
      return absl::DataLossError(
          absl::StrCat("a message from ", Describe(peer_),
                       " was refused, and the connection ended: ",
                       header.status().message()));
    }
    Message result;
    result.type = header->type;
    result.payload.assign(packet.data() + kFrameHeaderSize,
                          packet.data() + size);
    result.handles = std::move(received.handles);
    return result;
  }
}

bool Channel::PeerIsGone() const {
  return WaitForEvents(socket_, POLLRDHUP, absl::InfinitePast(), nullptr, "")
      .ok();
}

absl::Status Channel::WaitForHangUp(absl::Time deadline,
                                    const CancelEvent* cancel) const {
  if (!is_open()) return ClosedError();
  return WaitForEvents(socket_, POLLRDHUP, deadline,
                       cancel != nullptr ? &cancel->handle() : nullptr,
                       absl::StrCat("hang-up of ", Describe(peer_)))
      .status();
}

}  // namespace vmm::platform
