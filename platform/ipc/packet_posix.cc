#include "platform/ipc/packet_posix.h"

#include <sys/uio.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/os/descriptor_posix.h"
#include "platform/os/os_error.h"

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

// Takes ownership of every descriptor in `message`; `packet.handles` has the
// room already, so nothing can fail in between.
void TakeControl(msghdr& message, Packet& packet) {
  for (cmsghdr* control = CMSG_FIRSTHDR(&message); control != nullptr;
       control = CMSG_NXTHDR(&message, control)) {
    if (TakeSpeaker(*control, packet.speaker)) continue;
    if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS) {
      packet.unknown_control = true;
      continue;
    }
    const std::size_t count = (control->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(control) + i * sizeof(int), sizeof(fd));
      packet.handles.push_back(AdoptDescriptor(fd));
      if (!packet.handles.back().has_value()) message.msg_flags |= MSG_CTRUNC;
    }
  }
}

}  // namespace

bool LookAtNext(const OsHandle& socket, Packet& packet) {
  // Fresh for each packet: a stale descriptor number must not be found.
  alignas(cmsghdr) std::uint8_t control[kControlSpace] = {};
  packet.handles.reserve(sizeof(control) / sizeof(int));
  iovec part = {packet.buffer.data(), packet.buffer.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t size = ::recvmsg(Fd(socket), &message,
                                 MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (size < 0) return false;
  TakeControl(message, packet);
  packet.size = static_cast<std::size_t>(size);
  packet.flags = message.msg_flags;
  return true;
}

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

}  // namespace vmm::platform
