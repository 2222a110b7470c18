// Descriptors of others whose closing may never return; internal to platform/.
//
// close() asks the file's own system to write what is left: a file of a FUSE
// mount asks a process, the sender's perhaps, which need not answer, and no
// signal ends that wait. So does fstat(). A TCP socket whose sender has asked for
// it (SO_LINGER) waits until the other end has taken what was written. Neither
// may happen on a thread that somebody waits for.
#ifndef VMMSHARE_PLATFORM_OS_CLOSE_ELSEWHERE_POSIX_H_
#define VMMSHARE_PLATFORM_OS_CLOSE_ELSEWHERE_POSIX_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "platform/os/os_handle.h"
#include "platform/os/process.h"

namespace vmm::platform {

// OK when closing `handle` waits for nobody: memory (memfd, tmpfs), a character
// device, a pipe, or an object of the kernel's such as an eventfd.
// INVALID_ARGUMENT for files, directories, block devices, and sockets: those of
// a network may linger, and others may have any descriptor in their queues. Other
// errors when the kernel does not tell.
absl::Status ClosesAtOnce(const OsHandle& handle);

// Closes them on threads that nobody waits for, a few for the whole process, on
// which others queue behind one that blocks. A process of `user` sent them.
void CloseElsewhere(std::vector<OsHandle> handles, const UserId& user,
                    std::int64_t process);

// How many of `user`'s are not closed yet; with `process`, of that alone.
std::size_t NotYetClosed(const UserId& user,
                         std::optional<std::int64_t> process = std::nullopt);

// Whose connections are closed together. Each has threads of its own, and so
// have handles: who blocks one of them holds up no other.
enum class Connections { kOfPeers, kOfStrangers };

// As CloseElsewhere, for a connection with handles in its queue.
void CloseElsewhere(OsHandle connection, Connections whose);
// First drops what is in the queue: another descriptor may keep it open.
void DropUnreadElsewhere(OsHandle duplicate, Connections whose);

// How many are not closed, or dropped, yet.
std::size_t NotYetClosed(Connections whose);

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_OS_CLOSE_ELSEWHERE_POSIX_H_
