// PeerWatch: whether a peer's process, and all that it forked, have ended.
//
// The end of a process is not the end of its GPU work. If it forked after CUDA
// was initialised, a child that has not exec'd keeps the driver's descriptors
// and mappings, so that its parent's context, and the kernels in it, live on
// (on an H100 they wrote for 4.9 s after the pidfd was readable; without a fork
// never). So memory that a peer had is free when
//   - its process has ended, by the system's own reference to it, and
//   - nobody has its lifeline (lifeline.h) any more, and,
//   - if it ever forked, some time has passed since: a child lets go of its
//     lifeline before the driver takes its context down (at most 126 ms before,
//     measured), and of children there is no reference.
// docs/lifetime.md says what a hostile peer can do.
//
//   // The peer:                     // Who gives it memory:
//   SendLifeline(channel, ...);      auto watch = PeerWatch::Receive(channel,..)
#ifndef VMMSHARE_PLATFORM_IPC_PEER_WATCH_H_
#define VMMSHARE_PLATFORM_IPC_PEER_WATCH_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "platform/ipc/channel.h"
#include "platform/ipc/lifeline.h"
#include "platform/os/deadline.h"
#include "platform/os/os_handle.h"
#include "platform/os/process.h"

namespace vmm::platform {

enum class PeerEnd {
  kNotEnded,  // Its process runs, or the system cannot say.
  kUnproven,  // Its process has ended; its GPU may go on: see why().
  kProven,    // Nobody has its GPU context any more. Stays so.
};

// Copies share what the system gave, and each sees for itself: one for each
// thread that looks. Thread-compatible.
class PeerWatch {
 public:
  // Receives the lifeline of the peer of `channel`: nothing else may come
  // before. Where the system does not refer to its process (Linux before 5.3;
  // before 6.5 a hidden one, or a denied pidfd_open) it is watched all the same,
  // and its end is never known. NOT_FOUND or UNAVAILABLE when it has ended;
  // RESOURCE_EXHAUSTED when no descriptor was left; otherwise as
  // ReceiveLifeline().
  static absl::StatusOr<PeerWatch> Receive(Channel& channel, Deadline deadline,
                                           const CancelEvent* cancel = nullptr,
                                           std::uint16_t* type = nullptr);

  // Whether the system can tell at all: see Receive().
  bool CanTell() const { return process_.has_value(); }
  // Its process: Process::Identity(). 0, too, where the system cannot tell.
  std::uint64_t ProcessIdentity() const {
    return process_.has_value() ? process_->Identity() : 0;
  }
  // What is known now. Whatever the peer does, this takes 0.1 s at most, and a
  // process no more than a twentieth of its time.
  PeerEnd Look();
  // Waits until its end is proven; DEADLINE_EXCEEDED says why it is not.
  absl::Status WaitForEnd(Deadline deadline);
  // Why the end of its process proves nothing, after "whose process has ended,
  // but ". Of the last Look(), if that was kUnproven.
  const char* why() const { return why_; }

 private:
  PeerWatch(std::optional<Process> process, OsHandle lifeline,
            PeerCredentials peer)
      : process_(std::move(process)),
        lifeline_(std::make_shared<const OsHandle>(std::move(lifeline))),
        peer_(std::move(peer)) {}
  // Of a process that has ended. Null: its end is proven.
  const char* WhyUnproven();

  std::optional<Process> process_;
  std::shared_ptr<const OsHandle> lifeline_;
  PeerCredentials peer_;
  PeerEnd end_ = PeerEnd::kNotEnded;
  bool was_outlived_ = false;
  const char* why_ = "";
  // When nobody was left. The context of the last one may take longer.
  std::optional<std::chrono::steady_clock::time_point> deserted_;
};

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_IPC_PEER_WATCH_H_
