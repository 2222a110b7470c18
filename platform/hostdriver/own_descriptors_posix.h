// The descriptors that the driver has for itself, which a forked child must not
// keep: whatever they lead to would stay, and count, as long as the child lives.
// Not those that programs were given by an export.
//
// No lock guards them, since a fork finds locks as other threads hold them. A
// child keeps what another thread was about to note or to close when it forked.
#ifndef VMMSHARE_PLATFORM_HOSTDRIVER_OWN_DESCRIPTORS_POSIX_H_
#define VMMSHARE_PLATFORM_HOSTDRIVER_OWN_DESCRIPTORS_POSIX_H_

#include <unistd.h>

namespace vmm::hostdriver {

// Below are the standard streams. Where a program was started with them closed,
// what it prints must not go into memory or into a file of the driver's.
inline constexpr int kLowestOwn = STDERR_FILENO + 1;
// `fd`, or another one in its place that is no standard stream's; negative when
// there is none.
int AboveStandardStreams(int fd);

// `fd` is the driver's own from now on.
void NoteOwn(int fd);
// Closes `fd`, which was noted. In a forked child it is closed already, and
// nothing is done.
void CloseOwn(int fd);
// In a forked child: closes all that its parent had noted.
void CloseAllOwn();

}  // namespace vmm::hostdriver

#endif  // VMMSHARE_PLATFORM_HOSTDRIVER_OWN_DESCRIPTORS_POSIX_H_
