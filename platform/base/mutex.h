// Mutex: std::mutex, of which clang's -Wthread-safety (./dev lint) knows what it
// guards; and CondVar, std::condition_variable for it. No cost over those.
#ifndef VMMSHARE_PLATFORM_BASE_MUTEX_H_
#define VMMSHARE_PLATFORM_BASE_MUTEX_H_

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "absl/base/attributes.h"
#include "absl/base/thread_annotations.h"

// Of what is let go of for a while; Abseil has no word for it.
#if ABSL_HAVE_ATTRIBUTE(release_capability)
#define VMMSHARE_LETS_GO_OF(mutex) __attribute__((release_capability(mutex)))
#else
#define VMMSHARE_LETS_GO_OF(mutex)
#endif

namespace vmm::platform {

class ABSL_LOCKABLE Mutex {
 public:
  Mutex() = default;  // Constant where that of std::mutex is.
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }
  bool TryLock() ABSL_EXCLUSIVE_TRYLOCK_FUNCTION(true) {
    return mutex_.try_lock();
  }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

// Holds a mutex while it lives, but between Unlock() and Lock().
class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex)
      : mutex_(mutex) {
    mutex_.Lock();
  }
  // Takes over what the caller holds.
  MutexLock(Mutex& mutex, std::adopt_lock_t)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex)
      : mutex_(mutex) {}
  ~MutexLock() ABSL_UNLOCK_FUNCTION() {
    if (held_) mutex_.Unlock();
  }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void Unlock() ABSL_UNLOCK_FUNCTION() {
    mutex_.Unlock();
    held_ = false;
  }
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() {
    mutex_.Lock();
    held_ = true;
  }

 private:
  Mutex& mutex_;
  bool held_ = true;
};

// Lets go of a mutex that the caller holds, while it lives.
class ABSL_SCOPED_LOCKABLE MutexUnlock {
 public:
  explicit MutexUnlock(Mutex& mutex) VMMSHARE_LETS_GO_OF(mutex)
      : mutex_(mutex) {
    mutex_.Unlock();
  }
  ~MutexUnlock() ABSL_UNLOCK_FUNCTION() { mutex_.Lock(); }
  MutexUnlock(const MutexUnlock&) = delete;
  MutexUnlock& operator=(const MutexUnlock&) = delete;

 private:
  Mutex& mutex_;
};

// A wait may end without a reason: ask in a loop, where the compiler sees that
// the mutex is held.
class CondVar {
 public:
  void Wait(Mutex& mutex) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    Borrowed lock(mutex);
    changed_.wait(lock.native);
  }
  // At most for `time`; false when that has passed.
  bool WaitFor(Mutex& mutex, std::chrono::nanoseconds time)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    Borrowed lock(mutex);
    return changed_.wait_for(lock.native, time) == std::cv_status::no_timeout;
  }
  void NotifyOne() { changed_.notify_one(); }
  void NotifyAll() { changed_.notify_all(); }

 private:
  // The caller's hold on it, which stays the caller's.
  struct Borrowed {
    explicit Borrowed(Mutex& mutex) : native(mutex.mutex_, std::adopt_lock) {}
    ~Borrowed() { native.release(); }
    std::unique_lock<std::mutex> native;
  };

  std::condition_variable changed_;
};

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_BASE_MUTEX_H_
