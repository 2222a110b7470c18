// This process's own lifeline, which it sends to peers; internal to platform/.
#ifndef VMMSHARE_PLATFORM_IPC_OWN_LIFELINE_POSIX_H_
#define VMMSHARE_PLATFORM_IPC_OWN_LIFELINE_POSIX_H_

#include <fcntl.h>

#include <cstddef>

#include "absl/status/statusor.h"
#include "platform/os/os_handle.h"

namespace vmm::platform {

inline constexpr std::size_t kLifelineBytes = 4096;
// With them nobody can write to the page who has it not mapped already, nor hold
// up who asks the kernel about it: a write() would, for as long as its buffer is
// not there (before Linux 6.16 one that these seals refuse does all the same).
inline constexpr int kLifelineSeals =
    F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE;

// A handle of this process's lifeline. That is made first where there is none, where
// somebody has closed its descriptor, and where a peer has made it useless for
// others. Thread-safe.
absl::StatusOr<OsHandle> TakeOwnLifeline();

// Whether the lifelines that are made here have all of kLifelineSeals. Then so have
// those of others, whose kernel is the same. Thread-safe.
bool OwnLifelinesAreSealed();

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_IPC_OWN_LIFELINE_POSIX_H_
