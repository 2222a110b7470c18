// What a barrier is made of in one process; internal to vmm/job.
#ifndef VMMSHARE_VMM_JOB_INTERNAL_BARRIER_STATE_H_
#define VMMSHARE_VMM_JOB_INTERNAL_BARRIER_STATE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "platform/base/abandon.h"
#include "platform/base/mutex.h"
#include "platform/cuda/driver.h"
#include "platform/ipc/channel.h"
#include "platform/os/deadline.h"
#include "platform/os/process.h"
#include "vmm/job/barrier.h"
#include "vmm/job/internal/barrier_protocol.h"
#include "vmm/sync/fence.h"
#include "vmm/sync/fence_pool.h"
#include "vmm/sync/internal/peer.h"

namespace vmm {
namespace barrier {

inline std::string NameOf(std::uint32_t rank) {
  return absl::StrCat("rank ", rank);
}

// A connection to another member.
struct Link {
  Link(std::uint32_t its_rank, platform::Channel its_channel)
      : rank(its_rank), peer(std::move(its_channel), NameOf(its_rank)) {}

  std::uint32_t rank;
  Peer peer;
  std::thread watcher;
};

// How many barriers this process has left as rank 0 and still watches for the
// others; for tests. A forked child has its parent's count.
std::size_t LeftAndWatched();

}  // namespace barrier

// Calls are barrier.cc's; how it comes about, barrier_join.cc's; what watches the
// other members, on a thread each, barrier_watch.cc's; and how it ends,
// barrier_leave.cc's.
class Barrier::State : public platform::Abandonable {
 public:
  State(std::uint32_t rank, platform::Driver driver, platform::CancelEvent stop)
      : rank_(rank), driver_(std::move(driver)), stop_(std::move(stop)) {}
  // What a barrier's end comes to. Rank 0, by which the others learn of each
  // other, goes on watching until they have gone.
  static void Leave(std::unique_ptr<State> state);

  static absl::StatusOr<std::unique_ptr<State>> Make(
      std::uint32_t rank, const platform::Driver& driver);
  bool IsOfAnotherProcess() const { return !made_.is_still_here(); }
  absl::Status Host(FencePool& fences, const std::string& ticket,
                    std::vector<platform::Channel> members, Deadline deadline);
  // `host` has sent the offer.
  absl::Status Join(const Device& device, const barrier::Offer& offer,
                    std::unique_ptr<barrier::Link> host, Deadline deadline,
                    const platform::PeerPolicy& owners);

  // FAILED_PRECONDITION when `stream` is captured. OK where nothing would be put
  // on it: of a barrier that is broken its calls say more.
  absl::Status CheckStream(CUstream stream) const;
  // `deadline`: for word of why the barrier was let go, if it was.
  absl::Status Arrive(const std::function<absl::Status(Fence&)>& signal,
                      Deadline deadline);
  absl::Status ArriveOnHost(Deadline deadline);
  absl::Status Wait(CUstream stream);
  absl::Status WaitOnHost(Deadline deadline);
  void LetGo();
  absl::Status status() const {
    platform::MutexLock lock(mutex_);
    return status_;
  }
  // Why no wait may begin any more.
  absl::Status whole() const {
    platform::MutexLock lock(mutex_);
    return status_.ok() ? unwatched_ : status_;
  }
  std::uint32_t rank() const { return rank_; }
  std::uint32_t size() const {
    return static_cast<std::uint32_t>(fences_.size());
  }
  std::uint64_t round() const { return round_; }

 private:
  class Left;

  // The GPU has passed this rank's arrivals.
  bool HasPassed();
  // Somebody is there whom this process watches for the others.
  bool IsNeeded() const;
  void SayBye();
  // Has the watchers end.
  void Stop();
  void JoinWatchers();
  bool NobodyIsThere() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool AllAreThere() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsOver() const {
    platform::MutexLock lock(mutex_);
    return IsOverNow();
  }
  bool IsOverNow() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return ending_ || (left_ && NobodyIsThere());
  }

  // What it takes to join.
  absl::Status Subscribe(const Device& device, const barrier::Offer& offer,
                         Deadline deadline, const platform::PeerPolicy& owners);
  absl::Status StartWatchers();
  // On a thread of its own, until the barrier's end.
  void Watch(barrier::Link& link);
  // By the last watcher of what rank 0 has left: nobody is there any more.
  void Drop(barrier::Link& link);
  void WatchConnection(barrier::Link& link);
  // Of one whose connection has ended.
  void Lose(barrier::Link& link, const absl::Status& why);
  // Rank 0 has left, and now its connection has ended too: nobody says any more
  // who ends.
  void LoseSight(barrier::Link& link);
  // What is known of it. Lets nobody go but those that wait for one that left.
  void TakeGone(const barrier::Gone& gone, const absl::Status& why);
  void TellOthers(const barrier::Gone& gone);
  // What ends a wait for others.
  FenceWatch WhileWhole() {
    return {.still_worth = [this] { return whole(); }};
  }
  void LetGoOfAll() {
    for (Fence& fence : fences_) fence.Abandon().IgnoreError();
  }
  // Signals that were on streams when the barrier was let go come later, over the
  // ends that were written then. Members that are further ahead would wait for
  // ever, if nobody looked and so put the ends back.
  void KeepLetGo();
  // Why the fence of `rank` answered that: what is known of it says more.
  absl::Status Judge(const absl::Status& status, std::uint32_t rank,
                     Deadline deadline);

  std::uint32_t rank_;
  const platform::Driver driver_;
  const platform::MadeHere made_;
  const platform::CancelEvent stop_;
  std::unique_ptr<ImportedFencePool> imported_;  // Goes after the fences.
  std::vector<Fence> fences_;                    // One a rank.
  std::vector<std::unique_ptr<barrier::Link>> links_;
  std::atomic<std::uint64_t> round_ = 0;  // Grows under mutex_.

  mutable platform::Mutex mutex_;
  platform::CondVar changed_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);  // Of the whole barrier.
  // Why waits that are put from now on might never end; see LoseSight().
  absl::Status unwatched_ ABSL_GUARDED_BY(mutex_);
  // Of each rank: why it will arrive at no further round.
  std::vector<absl::Status> gone_ ABSL_GUARDED_BY(mutex_);
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;       // Watchers are to end.
  bool left_ ABSL_GUARDED_BY(mutex_) = false;         // Rank 0, but it watches.
  std::size_t watching_ ABSL_GUARDED_BY(mutex_) = 0;  // Threads.
  platform::Mutex sending_;                           // Of what watchers send.
};

}  // namespace vmm

#endif  // VMMSHARE_VMM_JOB_INTERNAL_BARRIER_STATE_H_
