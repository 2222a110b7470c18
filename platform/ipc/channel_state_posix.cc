// Who is at the other end of a Channel, and how that ends.
#include "platform/ipc/channel_state_posix.h"

#include <poll.h>

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/annotate.h"
#include "platform/base/status_macros.h"
#include "platform/ipc/cancels_of.h"
#include "platform/ipc/hang_up_posix.h"
#include "platform/ipc/peer_posix.h"
#include "platform/os/wait_posix.h"

namespace vmm::platform {
namespace {

// Of two that IsSameProcess(): whether both have references, and to one process.
// Before Linux 6.9 their files do not tell, but a number is not given out again
// while its process lives.
bool IsSurelyTheSame(const Speaker& now, const Speaker& before) {
  if (now.process == nullptr || before.process == nullptr) return false;
  if (now.credentials.pid <= 0) return false;  // Hidden: no number.
  const absl::StatusOr<bool> exited =
      Process::FromHandle(before.process, before.credentials.pid).HasExited();
  return exited.ok() && !*exited;
}

}  // namespace

absl::StatusOr<Channel> Channel::State::MakeChannel(OsHandle socket,
                                                    PeerCredentials maker,
                                                    PeerPolicy policy,
                                                    HeldBy held_by) {
  RETURN_IF_ERROR(AskWhoSpeaks(socket));
  auto state = std::make_shared<State>();
  state->policy = std::move(policy);
  state->held_by = held_by;
  return Channel(std::move(socket), std::move(maker), std::move(state));
}

void Channel::Close() {
  if (state_ == nullptr) return;
  peer_ = peer();
  const std::shared_ptr<State> state = std::move(state_);
  // A forked child's copy ends nothing while the parent has the connection.
  if (!state->made.is_still_here()) return socket_.Reset();
  HangUp(std::move(socket_),
         state->epoch == ForkEpoch() ? state->held_by : HeldBy::kOthersToo,
         Connections::kOfPeers);
}

void Channel::Break() {
  broken_ = true;
  state_->ForgetProcess();
  // Not closed: the other thread may be waiting on the same descriptor, whose
  // number could then come to mean something else. It wakes from this.
  ShutDown(socket_);
}

bool Channel::PeerIsGone() const {
  return WaitForEvents(socket_, POLLRDHUP, absl::InfinitePast(), {}, "").ok();
}

absl::Status Channel::WaitForHangUp(Deadline deadline,
                                    const CancelEvent* cancel) const {
  if (!is_open()) return ClosedError();
  return WaitForEvents(socket_, POLLRDHUP, deadline, CancelsOf(cancel),
                       absl::StrCat("hang-up of ", Describe(peer())))
      .status();
}

PeerCredentials Channel::peer() const {
  if (state_ == nullptr) return peer_;
  const MutexLock lock(state_->mutex);
  return state_->speakers == 0 ? peer_ : state_->speaker.credentials;
}

std::uint64_t Channel::speakers() const {
  if (state_ == nullptr) return 0;
  const MutexLock lock(state_->mutex);
  return state_->speakers;
}

absl::Status Channel::State::Hear(Speaker who) {
  if (!who.is_known()) {
    return absl::DataLossError(
        "a message was refused, and the connection ended: the kernel did not "
        "say who sent it");
  }
  if (absl::Status may = CheckPeer(who.credentials, policy); !may.ok()) {
    return Annotate(may, "a message was refused, and the connection ended");
  }
  DoubtWhenItWasSent(start_of_system, who);
  RETURN_IF_ERROR(ReadProcessFile(who));
  Speaker before;  // Its reference is closed once the mutex is let go.
  const MutexLock lock(mutex);
  if (speakers == 0 || !IsSameProcess(who, speaker)) {
    ++speakers;
  } else if (speaker.process.use_count() > 1 && IsSurelyTheSame(who, speaker)) {
    // Whoever has opened the peer has that one: two would cost a descriptor more.
    who.process = speaker.process;
  }
  before = std::exchange(speaker, std::move(who));
  if (speaker.process == nullptr && ends_with_its_process &&
      before.process != nullptr && IsSameProcess(before, speaker)) {
    // Its reference did not come this time: no descriptor was left for it, or it
    // has been reaped since.
    maker = Process::FromHandle(before.process, before.credentials.pid);
  } else if (speaker.process != nullptr ||
             (maker.has_value() && maker->pid() != speaker.credentials.pid)) {
    // Its own reference came; or another one speaks, whose end is not known.
    maker.reset();
  }
  return absl::OkStatus();
}

void Channel::State::ForgetProcess() {
  const MutexLock lock(mutex);
  speaker.process.reset();
  maker.reset();
}

std::optional<Process> Channel::State::WhoseEnd() const {
  const MutexLock lock(mutex);
  if (ends_with_its_process && speaker.process != nullptr) {
    return Process::FromHandle(speaker.process, speaker.credentials.pid);
  }
  return maker;
}

absl::Status Channel::EndWithItsProcess() {
  if (!is_open()) return ClosedError();
  absl::StatusOr<Process> maker =
      peer_.pid > 0 ? Process::Open(peer_.pid)
                    : absl::UnimplementedError("a hidden namespace");
  if (maker.ok()) {
    const absl::StatusOr<bool> exited = maker->HasExited();
    if (exited.ok() && *exited) maker = absl::NotFoundError("");
  }
  if (absl::IsNotFound(maker.status())) {
    return absl::NotFoundError(
        absl::StrCat("the peer, ", Describe(peer_), ", has ended"));
  }
  // Where a kernel has no such descriptors, or a container forbids them.
  if (!maker.ok() && !absl::IsUnimplemented(maker.status()) &&
      !absl::IsPermissionDenied(maker.status())) {
    return maker.status();
  }
  const MutexLock lock(state_->mutex);
  state_->ends_with_its_process = true;
  if (maker.ok()) state_->maker = *std::move(maker);
  return absl::OkStatus();
}

absl::StatusOr<Process> Channel::OpenPeer() const {
  if (!is_open()) return ClosedError();
  const MutexLock lock(state_->mutex);
  if (state_->speakers == 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "nobody has sent a message over this connection yet, so it is not "
        "known who will; ",
        Describe(peer_), " made it. Receive first."));
  }
  return OpenSpeaker(state_->speaker);
}

}  // namespace vmm::platform
