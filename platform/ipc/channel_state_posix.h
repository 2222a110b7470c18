// What a channel keeps beside its socket; internal to platform/.
#ifndef VMMSHARE_PLATFORM_IPC_CHANNEL_STATE_POSIX_H_
#define VMMSHARE_PLATFORM_IPC_CHANNEL_STATE_POSIX_H_

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "platform/base/mutex.h"
#include "platform/ipc/channel.h"
#include "platform/ipc/hang_up_posix.h"
#include "platform/ipc/packet_posix.h"
#include "platform/ipc/speaker_posix.h"
#include "platform/os/os_handle.h"
#include "platform/os/process.h"

namespace vmm::platform {

struct Channel::State {
  // The channel over `socket`, which `maker` connected.
  static absl::StatusOr<Channel> MakeChannel(OsHandle socket,
                                             PeerCredentials maker,
                                             PeerPolicy policy, HeldBy held_by);

  // The same after looking whether it is a channel's and `policy` allows who
  // made it. Errors as Channel::Adopt().
  static absl::StatusOr<Channel> Take(OsHandle socket, const PeerPolicy& policy,
                                      HeldBy held_by);

  // The message that `packet`, the next one in the queue, is. Takes it out of the
  // queue, unless its handles do not all have room here. `limit`: NearLimit(), where
  // that is why, and its sender need not lose the connection; else empty. Errors as
  // Channel::Receive().
  absl::StatusOr<Message> TakeMessage(Channel& channel, Packet& packet,
                                      absl::string_view limit);

  // The sender of a message that came. OK when it may speak, and it is then the
  // peer.
  absl::Status Hear(Speaker who);

  // The connection has ended: who spoke last is for messages only.
  void ForgetProcess();

  // Whose end ends the connection, if any.
  std::optional<Process> WhoseEnd() const;

  PeerPolicy policy;
  // As it was when this was made. What is forked later may go on with the socket.
  HeldBy held_by = HeldBy::kOthersToo;
  const MadeHere made;
  std::uint64_t epoch = ForkEpoch();
  const absl::Time start_of_system = TimeOfStart();
  mutable Mutex mutex;  // One thread receives, and another may ask.
  // Of the message received last.
  Speaker speaker ABSL_GUARDED_BY(mutex);
  // Whose end ends the connection, after Channel::EndWithItsProcess(): who made it,
  // until somebody speaks; the speaker, while its own reference is missing.
  std::optional<Process> maker ABSL_GUARDED_BY(mutex);
  bool ends_with_its_process ABSL_GUARDED_BY(mutex) = false;
  // How many times another process began to speak.
  std::uint64_t speakers ABSL_GUARDED_BY(mutex) = 0;
};

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_IPC_CHANNEL_STATE_POSIX_H_
