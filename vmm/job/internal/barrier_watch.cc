// What watches the other members of a barrier, on a thread each: see barrier_state.h.
#include <algorithm>
#include <string>

#include "platform/base/annotate.h"
#include "platform/base/status_macros.h"
#include "platform/os/start_thread.h"
#include "vmm/job/internal/barrier_state.h"

namespace vmm {
namespace {

// From the hang-up of a process that is killed to its confirmed end (measured:
// up to 73 ms), with room; and from there to word of it from rank 0.
constexpr absl::Duration kEndAfterHangUp = absl::Seconds(1);
// How long the end of the barrier may wait for a thread that waits for a proof.
constexpr absl::Duration kLookAtEnding = absl::Milliseconds(10);
// How often it is seen to that streams stay let go.
constexpr absl::Duration kLookAtLetGo = absl::Milliseconds(100);

}  // namespace

absl::Status Barrier::State::StartWatchers() {
  {
    const platform::MutexLock lock(mutex_);
    gone_.resize(fences_.size());
  }
  for (const std::unique_ptr<barrier::Link>& link : links_) {
    RETURN_IF_ERROR(platform::StartThread(
        link->watcher, "vmmshare-watch", "that watches a barrier",
        [this, raw = link.get()] { Watch(*raw); }));
    const platform::MutexLock lock(mutex_);
    ++watching_;
  }
  return absl::OkStatus();
}

void Barrier::State::Watch(barrier::Link& link) {
  WatchConnection(link);
  while (!IsOver()) {
    KeepLetGo();
    const platform::MutexLock lock(mutex_);
    if (!IsOverNow())
      changed_.WaitFor(mutex_, absl::ToChronoNanoseconds(kLookAtLetGo));
  }
  bool drops = false;
  {
    const platform::MutexLock lock(mutex_);
    drops = --watching_ == 0 && left_;
  }
  if (drops) Drop(link);
}

void Barrier::State::WatchConnection(barrier::Link& link) {
  bool has_left = false;
  for (;;) {
    absl::StatusOr<platform::Message> message =
        link.peer.Receive(Deadline::In(kLookAtLetGo), &stop_);
    if (absl::IsCancelled(message.status())) return;
    if (absl::IsDeadlineExceeded(message.status())) {
      KeepLetGo();
      continue;
    }
    barrier::Gone gone{link.rank, false};
    absl::Status why;
    if (message.ok() && message->type == barrier::kBarrierGone && rank_ != 0) {
      absl::StatusOr<barrier::Gone> other =
          barrier::DecodeGone(message->payload, size());
      if (other.ok()) {
        TakeGone(*other, absl::UnavailableError(absl::StrCat(
                             barrier::NameOf(other->rank),
                             other->left ? " has left" : " has ended",
                             ", as rank 0 says")));
        continue;
      }
      why = other.status();
    } else if (message.ok() && message->type == barrier::kBarrierBye) {
      gone.left = true;
      why = absl::UnavailableError(
          absl::StrCat(barrier::NameOf(link.rank), " has left the barrier"));
      if (link.rank == 0) {  // It goes on telling who ends.
        has_left = true;
        TakeGone(gone, why);
        continue;
      }
    } else if (message.ok()) {
      why = absl::DataLossError(absl::StrCat(
          barrier::NameOf(link.rank), " sent a message of type 0x",
          absl::Hex(message->type), ", which has no place in a barrier"));
    } else if (has_left) {
      LoseSight(link);
      return;
    } else {
      Lose(link, message.status());
      return;
    }
    TakeGone(gone, why);
    TellOthers(gone);
    if (!gone.left) LetGoOfAll();
    return;
  }
}

void Barrier::State::Lose(barrier::Link& link, const absl::Status& why) {
  const barrier::Gone gone{link.rank, false};
  link.peer.HasEnded(Deadline::In(kEndAfterHangUp));
  TakeGone(gone, absl::UnavailableError(absl::StrCat(barrier::NameOf(link.rank),
                                                     " ", link.peer.Describe(),
                                                     ": ", why.message())));
  TellOthers(gone);
  // What it forked may still write to what the others wait for.
  while (!link.peer.HasEnded(Deadline::In(kLookAtEnding))) {
    if (IsOver()) return;
  }
  LetGoOfAll();
}

void Barrier::State::LoseSight(barrier::Link& link) {
  const std::string why = "rank 0 has left, and its process has ended";
  absl::Status broken;
  {
    const platform::MutexLock lock(mutex_);
    // From here on no wait begins.
    unwatched_ = absl::UnavailableError(
        absl::StrCat(why, ": nobody would notice the end of another member"));
    // What waits already waits for this round, or one before.
    for (std::uint32_t rank = 0; rank < size() && broken.ok(); ++rank) {
      if (rank == rank_) continue;
      // The fence of one that left is abandoned. That of one that has ended is
      // not: rank 0 was to let go once it had the proof, and is gone itself.
      const absl::Status came =
          fences_[rank].WaitOnHost(round_, absl::InfinitePast());
      if (came.ok() || absl::IsAborted(came)) continue;
      broken = absl::UnavailableError(absl::StrCat(
          why, " before ", barrier::NameOf(rank), " had come to round ",
          round(), ": nobody would notice its end"));
    }
    if (status_.ok()) status_ = broken;
  }
  changed_.NotifyAll();
  if (broken.ok()) return;
  // Others are to learn why before their streams go on.
  link.peer.HasEnded(Deadline::In(kEndAfterHangUp));
  LetGoOfAll();
}

void Barrier::State::KeepLetGo() {
  {
    const platform::MutexLock lock(mutex_);
    // Nobody let go, or who did sees to it. Who has left does so no more, and may
    // have let go before: of that it says nothing.
    if (status_.ok() && AllAreThere()) return;
  }
  for (const Fence& fence : fences_) fence.Query().IgnoreError();
}

void Barrier::State::TakeGone(const barrier::Gone& gone,
                              const absl::Status& why) {
  {
    platform::MutexLock lock(mutex_);
    if (gone_[gone.rank].ok()) gone_[gone.rank] = why;
    if (!gone.left && status_.ok()) status_ = why;
  }
  // One that left has arrived wherever it ever will. One that ended breaks the
  // barrier: members that learn of it arrive no more, so whoever has the proof
  // lets all go that wait for them.
  if (gone.left) fences_[gone.rank].Abandon().IgnoreError();
  changed_.NotifyAll();
}

void Barrier::State::TellOthers(const barrier::Gone& gone) {
  if (rank_ != 0) return;
  platform::MutexLock lock(sending_);
  for (const std::unique_ptr<barrier::Link>& link : links_) {
    if (link->rank == gone.rank) continue;
    // One that does not read is told by the end of its connection.
    link->peer.channel()
        .Send(barrier::kBarrierGone, EncodeGone(gone), {}, absl::InfinitePast())
        .IgnoreError();
  }
}

absl::Status Barrier::State::Judge(const absl::Status& status,
                                   std::uint32_t rank, Deadline deadline) {
  if (!absl::IsAborted(status) && !absl::IsUnavailable(status)) {
    return platform::Annotate(
        status, absl::StrCat(barrier::NameOf(rank), " in round ", round()));
  }
  // Somebody may have let go before this process was told why.
  deadline = std::min(deadline, Deadline::In(kEndAfterHangUp));
  platform::MutexLock lock(mutex_);
  while (status_.ok() && gone_[rank].ok() && unwatched_.ok() &&
         !deadline.Passed()) {
    changed_.WaitFor(mutex_, deadline.Slice());
  }
  if (!status_.ok()) return status_;
  if (!gone_[rank].ok()) return gone_[rank];
  if (!unwatched_.ok()) return unwatched_;
  return platform::Annotate(
      status, absl::StrCat("the barrier was let go, ", barrier::NameOf(rank),
                           " in round ", round()));
}

}  // namespace vmm
