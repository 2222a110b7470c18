// Watch: by how much a call is later than its deadline, and how much of that
// the machine is to blame for.
//
// On a loaded machine whoever sleeps until a deadline wakes up late. A thread
// of the watch does nothing else, so what it is late by is the machine's. A
// call may be late by that and 50 ms.
#ifndef VMMSHARE_TESTS_KILL_WATCH_H_
#define VMMSHARE_TESTS_KILL_WATCH_H_

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace vmm::testing {

class Watch {
 public:
  struct Reading {
    absl::Duration took;
    absl::Duration late;     // After the deadline; 0 if it was in time.
    absl::Duration control;  // What the thread that only sleeps was late by.
  };

  // Starts: the call is made now.
  explicit Watch(absl::Time deadline)
      : deadline_(deadline), start_(absl::Now()) {
    // Whoever has seconds left is not late by milliseconds.
    if (deadline - start_ < absl::Seconds(1)) {
      sleeper_ = std::thread([this] { Sleep(); });
    }
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  ~Watch() { Join(); }

  // The call has returned.
  Reading Stop() {
    const absl::Time now = absl::Now();
    Join();
    return {now - start_, std::max(now - deadline_, absl::ZeroDuration()),
            control_};
  }

 private:
  void Sleep() {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto until = absl::ToChronoTime(deadline_);
    if (stopped_.wait_until(lock, until, [this] { return stop_; })) return;
    control_ = std::max(absl::Now() - deadline_, absl::ZeroDuration());
  }
  void Join() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      // Whose deadline has passed sleeps to its end.
      stop_ = absl::Now() < deadline_;
    }
    stopped_.notify_all();
    if (sleeper_.joinable()) sleeper_.join();
  }

  const absl::Time deadline_;
  const absl::Time start_;
  absl::Duration control_ = absl::ZeroDuration();
  std::mutex mutex_;
  std::condition_variable stopped_;
  bool stop_ = false;
  std::thread sleeper_;
};

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_KILL_WATCH_H_
