// Who sends the messages that come over a Unix socket; internal to platform/.
//
// SO_PEERCRED and SO_PEERPIDFD name who called connect(), listen() or
// socketpair(), and that stays so when the process has ended or another one has
// the socket now. What the kernel attaches to a message names its sender.
#ifndef VMMSHARE_PLATFORM_IPC_SPEAKER_POSIX_H_
#define VMMSHARE_PLATFORM_IPC_SPEAKER_POSIX_H_

#include <sys/socket.h>
#include <sys/time.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "platform/ipc/channel.h"
#include "platform/os/os_handle.h"
#include "platform/os/process.h"

namespace vmm::platform {

// The sender of one message.
struct Speaker {
  PeerCredentials credentials;  // Without a user while nothing came.
  // A pidfd, from the kernel. Null: no_process says why.
  std::shared_ptr<const OsHandle> process;
  int no_process = ENOPROTOOPT;
  // The pidfd's file: tells processes apart that had the same number, or have
  // none here. Kernels before 6.9 give all the same; 0 without a pidfd.
  std::uint64_t process_file = 0;
  // When the message was sent, in clock ticks since the system's start. Only of
  // kernels that attach no pidfd.
  std::optional<std::uint64_t> sent;
  // When else it may have been, where the clock was set since the connection was
  // made.
  std::optional<std::uint64_t> or_sent;

  bool is_known() const { return !credentials.user.text().empty(); }
};

// Room for a Speaker in a message's control data.
inline constexpr std::size_t kSpeakerSpace = CMSG_SPACE(sizeof(ucred)) +
                                             CMSG_SPACE(sizeof(int)) +
                                             CMSG_SPACE(sizeof(timeval));

// Has the kernel say of each message who sent it, for `socket` and for sockets
// that are accepted from it.
absl::Status AskWhoSpeaks(const OsHandle& socket);

// The time of day when the system was started: another one once somebody has set
// the clock.
absl::Time TimeOfStart();

// Sets speaker.or_sent, if the clock was set since TimeOfStart() was `start`. The
// kernel says of a message the time of day at which it was sent, and the clock may
// have been set while the message was on its way: so that is the time by the clock
// of now, or by the one before. To be called when the message has come.
void DoubtWhenItWasSent(absl::Time start, Speaker& speaker);

// Takes over what `control` says of the sender; false when it says something
// else.
bool TakeSpeaker(cmsghdr& control, Speaker& speaker);

// Sets speaker.process_file.
absl::Status ReadProcessFile(Speaker& speaker);

// Whether both are one process, as far as the kernel tells.
bool IsSameProcess(const Speaker& a, const Speaker& b);

// A reference to the process of `speaker`. Errors as Channel::OpenPeer().
absl::StatusOr<Process> OpenSpeaker(const Speaker& speaker);

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_IPC_SPEAKER_POSIX_H_
