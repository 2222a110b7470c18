// The end of a connection, for which nobody waits; internal to platform/.
//
// The kernel closes descriptors in messages that nobody received when the last
// descriptor of their socket goes, on the thread that closes it, and any of them
// may block (os/close_elsewhere_posix.h). A peer that was never heard, and whose
// user is not even allowed to speak, may have sent some.
#ifndef VMMSHARE_PLATFORM_IPC_HANG_UP_POSIX_H_
#define VMMSHARE_PLATFORM_IPC_HANG_UP_POSIX_H_

#include "absl/status/status.h"
#include "platform/os/close_elsewhere_posix.h"
#include "platform/os/os_handle.h"

namespace vmm::platform {

// Who else may have the socket.
enum class HeldBy {
  kThisProcessAlone,  // Nothing more comes once it is shut down.
  kOthersToo,         // Their connection goes on.
};

// Closes `socket`, of a connection, and waits for nobody: here if there are no
// descriptors in its queue, else elsewhere. The peer sees the end at once, unless
// others have the socket. REQUIRES: `socket` owns one.
void HangUp(OsHandle socket, HeldBy held_by, Connections whose);

// Ends the connection and drops what was not received; `socket` stays open, for
// another thread may use it.
void ShutDown(const OsHandle& socket);

// Ends a socket that listens: who waits to be accepted is hung up on, and whoever
// comes now is refused. REQUIRES: `socket` owns one.
void EndListening(OsHandle socket);

// RESOURCE_EXHAUSTED while so many connections block in being closed that none
// more should be accepted.
absl::Status CheckThatConnectionsClose();

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_IPC_HANG_UP_POSIX_H_
