// AskLifeline(): questions to the kernel that a hostile peer can leave unanswered.
//
// The kernel takes the lock of the page's inode to add a seal, and no signal ends
// that wait. Whoever has a descriptor of the page holds that lock in a write()
// whose buffer is not there: a page of a file in a FUSE mount that its server does
// not read.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "platform/base/mutex.h"
#include "platform/ipc/lifeline.h"
#include "platform/os/of_process_posix.h"
#include "platform/os/start_detached_posix.h"

namespace vmm::platform {
namespace {

using Clock = std::chrono::steady_clock;
using Handle = std::shared_ptr<const OsHandle>;
using Sender = std::pair<UserId, std::int64_t>;

// An answer takes some microseconds, and some 10 more for the other thread; on a
// busy machine as long as that waits for a processor.
constinit std::atomic<std::chrono::milliseconds> current_patience{
    kLifelinePatience};
// Once somebody has waited in vain, nobody waits for this many times as long.
constexpr int kImpatience = 20;
// Questions that may go on at a time, each on a thread of its own.
constexpr std::size_t kMostThreads = 32;
constexpr std::size_t kMostOfUser = 8;
// How long a thread waits for the next question.
constexpr std::chrono::seconds kLinger{1};

class Askers {
 public:
  absl::StatusOr<LifelineReading> Ask(const Handle& lifeline,
                                      const Sender& sender) {
    const MutexLock lock(mutex_);
    DropForgotten();
    const Clock::time_point start = Clock::now();
    const Clock::time_point until =
        start < impatient_until_ ? start : start + current_patience.load();
    for (;;) {
      auto found = questions_.find(lifeline);
      if (found != questions_.end() && found->second.answer.has_value()) {
        const absl::StatusOr<LifelineReading> answer = *found->second.answer;
        questions_.erase(found);
        return answer;
      }
      if (found == questions_.end()) found = Begin(lifeline, sender);
      const bool is_late =
          found != questions_.end() && found->second.waited_for_in_vain;
      const Clock::time_point now = Clock::now();
      if (!is_late && now < until) {
        answered_.WaitFor(mutex_, until - now);
        continue;
      }
      if (!is_late && until != start) {
        impatient_until_ = now + kImpatience * (now - start);
        if (found != questions_.end()) found->second.waited_for_in_vain = true;
      }
      return absl::UnavailableError("the kernel has not answered yet");
    }
  }

 private:
  struct Task {
    Handle lifeline;
    Sender sender;
  };
  struct Question {
    std::optional<absl::StatusOr<LifelineReading>> answer;
    bool waited_for_in_vain = false;
  };
  // Of lifelines that need not be open any more.
  using Questions =
      std::map<std::weak_ptr<const OsHandle>, Question, std::owner_less<>>;

  // Of those that nobody asks for any more.
  void DropForgotten() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::erase_if(questions_, [](const Questions::value_type& question) {
      return question.second.answer.has_value() && question.first.expired();
    });
  }

  // End where too many go on. Whoever asks comes again.
  Questions::iterator Begin(const Handle& lifeline, const Sender& sender)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto of_user = [&](const Sender& asked) {
      return asked.first == sender.first;
    };
    // Of a hidden namespace one process is not told from another.
    const bool is_known = sender.second != 0;
    if ((is_known && std::count(asked_.begin(), asked_.end(), sender) != 0) ||
        std::count_if(asked_.begin(), asked_.end(), of_user) >=
            std::ptrdiff_t{kMostOfUser} ||
        (idle_ <= waiting_.size() && !StartThread())) {
      return questions_.end();
    }
    // All that takes memory, before anything counts: what is asked for and waits
    // for no thread would have no answer for ever.
    Sender asked = sender;
    Questions question;
    question.emplace(lifeline, Question());
    asked_.reserve(asked_.size() + 1);
    waiting_.push_back({lifeline, sender});
    asked_.push_back(std::move(asked));
    asked_more_.NotifyOne();
    return questions_.insert(question.extract(question.begin())).position;
  }

  bool StartThread() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (threads_ == kMostThreads ||
        !StartDetached("vmmshare-ask", [this] { Work(); })) {
      return false;
    }
    ++threads_;
    return true;
  }

  void Work() {
    MutexLock lock(mutex_);
    while (HasWork()) {
      Task task = std::move(waiting_.front());
      waiting_.pop_front();
      lock.Unlock();
      absl::StatusOr<LifelineReading> answer = ReadLifeline(*task.lifeline);
      const std::weak_ptr<const OsHandle> lifeline = task.lifeline;
      task.lifeline.reset();
      lock.Lock();
      questions_[lifeline].answer = std::move(answer);
      asked_.erase(std::find(asked_.begin(), asked_.end(), task.sender));
      DropForgotten();
      answered_.NotifyAll();
    }
    --threads_;
  }

  // Waits for it a while, if no other thread does.
  bool HasWork() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const Clock::time_point until = Clock::now() + kLinger;
    while (waiting_.empty() && idle_ == 0) {
      const Clock::duration left = until - Clock::now();
      if (left <= Clock::duration::zero()) break;
      ++idle_;
      asked_more_.WaitFor(mutex_, left);
      --idle_;
    }
    return !waiting_.empty();
  }

  Mutex mutex_;
  CondVar answered_;
  CondVar asked_more_;
  Questions questions_ ABSL_GUARDED_BY(mutex_);
  std::deque<Task> waiting_ ABSL_GUARDED_BY(mutex_);   // For a thread.
  std::vector<Sender> asked_ ABSL_GUARDED_BY(mutex_);  // Whose have no answer.
  std::size_t threads_ ABSL_GUARDED_BY(mutex_) = 0;
  std::size_t idle_ ABSL_GUARDED_BY(mutex_) = 0;
  Clock::time_point impatient_until_ ABSL_GUARDED_BY(mutex_){};
};

Askers& TheAskers() {
  static constinit OfProcess<Askers> all;
  return all.Get();
}

}  // namespace

absl::StatusOr<LifelineReading> AskLifeline(
    const std::shared_ptr<const OsHandle>& lifeline,
    const PeerCredentials& sender) {
  return TheAskers().Ask(lifeline, {sender.user, sender.pid});
}

std::chrono::milliseconds internal::SetLifelinePatience(
    std::chrono::milliseconds patience) {
  return current_patience.exchange(patience);
}

}  // namespace vmm::platform
