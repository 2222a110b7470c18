// One packet of a channel's socket, and what comes beside its bytes; internal to
// platform/.
#ifndef VMMSHARE_PLATFORM_IPC_PACKET_POSIX_H_
#define VMMSHARE_PLATFORM_IPC_PACKET_POSIX_H_

#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "platform/ipc/frame.h"
#include "platform/ipc/speaker_posix.h"
#include "platform/os/os_handle.h"

namespace vmm::platform {

struct Packet {
  absl::Span<const std::uint8_t> bytes() const {
    return absl::MakeConstSpan(buffer.data(), size);
  }

  std::array<std::uint8_t, kMaxFrame> buffer;
  std::size_t size = 0;
  int flags = 0;  // As recvmsg() set them.
  std::vector<OsHandle> handles;
  Speaker speaker;
  bool unknown_control = false;
};

// Looks at the next packet in the queue of `socket`, where it stays; false, with
// errno set, when recvmsg() fails. It is looked at before it is taken because of
// handles that find no descriptor here: the kernel itself closes them, in this
// call, for as long as their sender likes, unless the queue has them as well.
// REQUIRES: `packet` is a new one, or was not filled yet.
bool LookAtNext(const OsHandle& socket, Packet& packet);

// Takes the packet that was looked at out of the queue.
absl::Status TakeOut(const OsHandle& socket);

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_IPC_PACKET_POSIX_H_
