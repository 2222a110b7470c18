#include "platform/ipc/hang_up_posix.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "platform/os/descriptor_posix.h"
#include "platform/os/text_file_posix.h"

namespace vmm::platform {
namespace {

// Connections that are not closed yet, from which on nobody is accepted. Each
// has a descriptor of this process and stands for one or more of the sender's.
constexpr std::size_t kMostOfPeers = 256;
constexpr std::size_t kMostOfStrangers = 64;

// False when it is certain that nothing is in the queue. Read without room for
// control data a packet is marked, for each says who sent it (AskWhoSpeaks()): so
// an empty one is told from the end.
bool MayHaveUnread(const OsHandle& socket) {
  for (;;) {
    std::uint8_t byte;
    iovec part = {&byte, sizeof(byte)};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    const ssize_t size =
        ::recvmsg(Fd(socket), &message, MSG_PEEK | MSG_DONTWAIT);
    if (size > 0) return true;
    if (size == 0) return (message.msg_flags & MSG_CTRUNC) != 0;
    // The second is said once, of a peer that closed with messages unread.
    if (errno == EINTR || errno == ECONNRESET) continue;
    return errno != EAGAIN && errno != ENOTCONN;
  }
}

// Whether there are descriptors in its queue, or nobody knows.
bool MayHoldDescriptors(const OsHandle& socket) {
  if (!MayHaveUnread(socket)) return false;
  const absl::StatusOr<std::string> about =
      ReadTextFile(absl::StrCat("/proc/self/fdinfo/", Fd(socket)));
  if (!about.ok()) return true;
  for (absl::string_view line : absl::StrSplit(*about, '\n')) {
    const std::pair<absl::string_view, absl::string_view> field =
        absl::StrSplit(line, absl::MaxSplits(':', 1));
    std::uint64_t count = 0;
    if (field.first == "scm_fds" && absl::SimpleAtoi(field.second, &count)) {
      return count != 0;
    }
  }
  return true;  // Linux before 5.5.
}

}  // namespace

void HangUp(OsHandle socket, HeldBy held_by, Connections whose) {
  if (held_by == HeldBy::kThisProcessAlone) ::shutdown(Fd(socket), SHUT_RDWR);
  if (MayHoldDescriptors(socket)) CloseElsewhere(std::move(socket), whose);
}

void ShutDown(const OsHandle& socket) {
  ::shutdown(Fd(socket), SHUT_RDWR);
  // Descriptors in unread messages would keep their memory alive as long as
  // this socket.
  if (!MayHoldDescriptors(socket)) return;
  absl::StatusOr<OsHandle> duplicate = Duplicate(socket);
  // Else they go with the socket.
  if (duplicate.ok()) {
    DropUnreadElsewhere(*std::move(duplicate), Connections::kOfPeers);
  }
}

void EndListening(OsHandle socket) {
  ::shutdown(Fd(socket), SHUT_RDWR);
  for (;;) {
    OsHandle waiting =
        AdoptDescriptor(::accept4(Fd(socket), nullptr, nullptr, SOCK_CLOEXEC));
    if (waiting.has_value()) {
      HangUp(std::move(waiting), HeldBy::kThisProcessAlone,
             Connections::kOfStrangers);
    } else if (errno == EAGAIN || errno == EINVAL) {
      return;  // None is left.
    } else if (errno != EINTR && errno != ECONNABORTED) {
      // No descriptor for those who wait: they go with the socket.
      CloseElsewhere(std::move(socket), Connections::kOfStrangers);
      return;
    }
  }
}

absl::Status CheckThatConnectionsClose() {
  const std::size_t peers = NotYetClosed(Connections::kOfPeers);
  const std::size_t strangers = NotYetClosed(Connections::kOfStrangers);
  if (peers < kMostOfPeers && strangers < kMostOfStrangers) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      peers, " connections of peers (at most ", kMostOfPeers, ") and ",
      strangers, " of others (at most ", kMostOfStrangers,
      ") block in close(), for what was sent over them does, so nobody is "
      "accepted: end the processes that connect and send such descriptors"));
}

}  // namespace vmm::platform
