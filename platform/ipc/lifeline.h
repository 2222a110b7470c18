// Lifeline: what every fork of this process has, too, until it execs or ends.
//
// Where processes fork it is a page of shared memory that is mapped from when
// this library is loaded. A fork maps it as well. Only exec and the end of a
// process unmap it: closing all descriptors does not, as it does not end the
// mappings by which a forked child keeps a GPU context of its parent's alive.
// In the page stands how often the process has forked.
//
// A child in which CUDA can be used has no context of its parent's: where that had
// initialised CUDA before, each call answers NOT_INITIALIZED in the child. So it
// lets go of the pages that it inherited. But another driver, or another copy of
// the same, answers in the child all the same: where one had answered in the
// parent before the fork, the pages stay.
//
// Whoever has the handle asks the kernel whether anybody maps the page. It can
// neither write nor map it for writing.
//
// Where there is no fork (Windows) nothing is sent, and nobody is ever left.
#ifndef VMMSHARE_PLATFORM_IPC_LIFELINE_H_
#define VMMSHARE_PLATFORM_IPC_LIFELINE_H_

#include <chrono>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "platform/ipc/channel.h"
#include "platform/os/deadline.h"
#include "platform/os/os_handle.h"

namespace vmm::platform {

// The type of the message in which a lifeline travels.
inline constexpr std::uint16_t kLifelineMessage = 0xF0F0;

// Sends this process's lifeline: before anything that the peer is to know the
// end of. Errors as Channel::Send(); RESOURCE_EXHAUSTED when there is no
// descriptor or memory for one, or no descriptor to send it by, and once peers
// have made 1,024 of them useless for others. Thread-safe.
absl::Status SendLifeline(Channel& channel, Deadline deadline);

// Unmaps the lifelines of the processes that this one was forked from: their ends
// are proven then though this one goes on. Does nothing where one of them had called
// this before the fork. REQUIRES: a call of the CUDA driver has succeeded here.
// Thread-safe.
void LetGoOfInheritedLifelines();

// Receives the peer's. INVALID_ARGUMENT for a message that is none, or whose
// handle is none: then nobody could ever be known to have ended; or one that
// others than the peer can write to, who could have whoever asks it wait.
// Otherwise as Channel::Receive(). Owns nothing where nothing is sent. `type`, if
// not null, becomes that of the message, where one came.
absl::StatusOr<OsHandle> ReceiveLifeline(Channel& channel, Deadline deadline,
                                         const CancelEvent* cancel = nullptr,
                                         std::uint16_t* type = nullptr);

// What can be seen of a process that has ended.
struct LifelineReading {
  // A process that it forked has not come to its end, nor to exec.
  bool mapped = false;
  // How often it, and what it forked, had forked.
  std::uint64_t forks = 0;
  // It has forked without a lifeline, for want of a descriptor or memory, or
  // since somebody closed it: of these children nobody can know.
  bool unseen = false;
};

// REQUIRES: its process has ended. Asking earlier may fail, no more. A hostile
// sender decides how long it takes: see AskLifeline().
absl::StatusOr<LifelineReading> ReadLifeline(const OsHandle& lifeline);

inline constexpr std::chrono::milliseconds kLifelinePatience{100};

// ReadLifeline() on a thread that nobody waits for: here no longer than
// kLifelinePatience, and not at all soon after somebody has waited in vain.
// UNAVAILABLE: there is no answer yet. Who asks again is told it once it is
// there, even if it has changed since. `sender` is whose lifeline it is: of a
// process one is asked at a time, of a user, and of all, a few. Thread-safe.
absl::StatusOr<LifelineReading> AskLifeline(
    const std::shared_ptr<const OsHandle>& lifeline,
    const PeerCredentials& sender);

namespace internal {

// For tests: how long AskLifeline() waits from now on, here and in what this
// process forks. On a machine that has no time for the other thread, whoever
// asks of an honest peer has the answer all the same. Returns how long it was.
// Thread-safe.
std::chrono::milliseconds SetLifelinePatience(
    std::chrono::milliseconds patience);

}  // namespace internal

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_IPC_LIFELINE_H_
