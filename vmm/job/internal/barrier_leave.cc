// How a barrier ends, and what rank 0 leaves behind: see barrier_state.h.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "platform/base/abandon.h"
#include "platform/os/deadline.h"
#include "vmm/job/internal/barrier_state.h"

namespace vmm {

using barrier::Link;

namespace {

std::atomic<std::size_t> left_and_watched = 0;

// How long a process that exits waits for a state that is being dropped, which
// takes some milliseconds.
constexpr absl::Duration kLongestDrop = absl::Seconds(10);

}  // namespace

// What this process has left as rank 0 and still watches. Lives as long as the
// process: the threads may outlast everything else.
class Barrier::State::Left {
 public:
  // This process's: a forked child has its parent's memory and not its threads,
  // and a mutex there may be locked for ever.
  static Left& Get();

  // Has `state` go on until nobody is there; then its last watcher drops it.
  // Answers it where the process ends already.
  std::unique_ptr<State> Keep(std::unique_ptr<State> state);
  // By the last watcher of `state`, the thread of `link`.
  void Drop(const State& state, Link& link);

 private:
  // What watchers look at may go when the process ends, before them.
  static void StopAtExit();
  void StopAll();

  static std::atomic<Left*> of_this_process;

  const platform::MadeHere made_;
  const Left* of_parent_ = nullptr;  // So that it is not taken for lost memory.
  platform::Mutex mutex_;
  bool exiting_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::unique_ptr<State>> states_ ABSL_GUARDED_BY(mutex_);
  // Threads that drop a state, which nobody joins, and that there is one less.
  std::size_t dropping_ ABSL_GUARDED_BY(mutex_) = 0;
  platform::CondVar dropped_;
};

std::atomic<Barrier::State::Left*> Barrier::State::Left::of_this_process = {};

Barrier::State::Left& Barrier::State::Left::Get() {
  Left* current = of_this_process.load();
  while (current == nullptr || !current->made_.is_still_here()) {
    auto made = std::make_unique<Left>();
    made->of_parent_ = current;
    if (of_this_process.compare_exchange_strong(current, made.get())) {
      current = made.release();
      // After all that the watchers use was made, hence before that goes. In a
      // child it is registered already.
      if (current->of_parent_ == nullptr) std::atexit(&Left::StopAtExit);
    }
  }
  return *current;
}

std::unique_ptr<Barrier::State> Barrier::State::Left::Keep(
    std::unique_ptr<State> state) {
  State& kept = *state;
  // Until it is let go of, no watcher drops what is kept.
  const platform::MutexLock lock(mutex_);
  if (exiting_) return state;
  states_.push_back(std::move(state));
  ++left_and_watched;
  {
    const platform::MutexLock its_lock(kept.mutex_);
    kept.left_ = true;
  }
  kept.changed_.NotifyAll();
  return nullptr;
}

void Barrier::State::Left::Drop(const State& state, Link& link) {
  std::unique_ptr<State> dropped;
  {
    const platform::MutexLock lock(mutex_);
    const auto found = std::find_if(
        states_.begin(), states_.end(),
        [&state](const auto& kept) { return kept.get() == &state; });
    if (found == states_.end()) return;  // The process ends.
    dropped = std::move(*found);
    states_.erase(found);
    ++dropping_;
  }
  link.watcher.detach();
  dropped->JoinWatchers();
  dropped.reset();
  --left_and_watched;
  const platform::MutexLock lock(mutex_);
  --dropping_;
  dropped_.NotifyAll();
}

void Barrier::State::Left::StopAtExit() {
  Left* const left = of_this_process.load();
  if (left->made_.is_still_here()) left->StopAll();
}

void Barrier::State::Left::StopAll() {
  std::vector<std::unique_ptr<State>> states;
  {
    const platform::MutexLock lock(mutex_);
    exiting_ = true;
    states = std::move(states_);
  }
  for (const std::unique_ptr<State>& state : states) state->Stop();
  for (std::unique_ptr<State>& state : states) {
    state->JoinWatchers();
    // The others learn it by the end of the process.
    platform::Abandon(std::move(state));
  }
  const Deadline deadline = Deadline::In(kLongestDrop);
  const platform::MutexLock lock(mutex_);
  while (dropping_ != 0 && !deadline.Passed()) {
    dropped_.WaitFor(mutex_, deadline.Slice());
  }
}

std::size_t barrier::LeftAndWatched() { return left_and_watched; }

void Barrier::State::Leave(std::unique_ptr<State> state) {
  if (state->IsOfAnotherProcess()) {
    platform::Abandon(std::move(state));
    return;
  }
  const bool passed = state->HasPassed();
  const bool needed = passed && state->rank_ == 0 && state->IsNeeded();
  if (needed) {
    state->SayBye();
    state = Left::Get().Keep(std::move(state));
    if (state == nullptr) return;
  }
  state->Stop();
  state->JoinWatchers();
  // Those that are not told so take the hang-up for an end.
  if (passed && !needed) state->SayBye();
  for (const std::unique_ptr<Link>& link : state->links_) {
    link->peer.channel().Close();
  }
  if (!passed) platform::Abandon(std::move(state));
}

void Barrier::State::Drop(Link& link) { Left::Get().Drop(*this, link); }

bool Barrier::State::HasPassed() {
  return fences_.empty() ||
         fences_[rank_].WaitOnHost(round_, absl::InfinitePast()).ok();
}

bool Barrier::State::NobodyIsThere() const {
  for (std::uint32_t rank = 0; rank < gone_.size(); ++rank) {
    if (rank != rank_ && gone_[rank].ok()) return false;
  }
  return true;
}

bool Barrier::State::AllAreThere() const {
  return std::all_of(gone_.begin(), gone_.end(),
                     [](const absl::Status& gone) { return gone.ok(); });
}

bool Barrier::State::IsNeeded() const {
  const platform::MutexLock lock(mutex_);
  return watching_ == links_.size() && !NobodyIsThere();
}

void Barrier::State::SayBye() {
  const platform::MutexLock lock(sending_);
  for (const std::unique_ptr<Link>& link : links_) {
    // One that does not read is told by the end of its connection.
    link->peer.channel()
        .Send(barrier::kBarrierBye, {}, {}, absl::InfinitePast())
        .IgnoreError();
  }
}

void Barrier::State::Stop() {
  {
    const platform::MutexLock lock(mutex_);
    ending_ = true;
  }
  changed_.NotifyAll();
  stop_.Notify();
}

void Barrier::State::JoinWatchers() {
  for (const std::unique_ptr<Link>& link : links_) {
    if (link->watcher.joinable()) link->watcher.join();
  }
}

}  // namespace vmm
