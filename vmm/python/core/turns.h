// Turns at what is for one thread at a time.
#ifndef VMMSHARE_VMM_PYTHON_CORE_TURNS_H_
#define VMMSHARE_VMM_PYTHON_CORE_TURNS_H_

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "vmm/python/core/wait.h"

namespace vmm::python {

// Threads have their turns in the order in which they came: a std::mutex would
// mostly give the next one to the thread that has just had one.
//
// No member needs to be destroyed: a forked child may do that, where nobody
// wakes who waited. So each thread waits on a condition of its own.
class Turns {
 public:
  // A thread's place in the line.
  class Place {
   public:
    explicit Place(Turns& turns) : turns_(turns) {}
    ~Place() { Give(); }
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;

    // Returns whether the turn came within `most`. Where it did not, the place
    // is kept, and others have theirs until the next call: its thread may be in
    // a signal's handler, or stay where the interpreter ends. Without the GIL.
    bool Take(std::chrono::nanoseconds most);
    // Ends the turn, and leaves the line.
    void Give();

   private:
    friend class Turns;
    Turns& turns_;
    // The rest under its mutex.
    std::condition_variable came_;
    bool is_in_line_ = false;
    bool waits_ = false;
    Place* next_ = nullptr;
  };

  // How long who has the turn may keep it: less while others have come lately.
  std::int64_t SliceNs() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return slice_ns_;
  }

 private:
  static constexpr std::int64_t kShortestNs = 5'000'000;

  void Append(Place& place);
  void Remove(Place& place);
  void GiveToNext();

  std::mutex mutex_;
  Place* holder_ = nullptr;
  Place* first_ = nullptr;  // In line.
  std::int64_t slice_ns_ = kSliceNs;
};

inline bool Turns::Place::Take(std::chrono::nanoseconds most) {
  std::unique_lock<std::mutex> lock(turns_.mutex_);
  if (!is_in_line_) turns_.Append(*this);
  if (turns_.holder_ == nullptr) {  // Nobody waits.
    turns_.Remove(*this);
    turns_.holder_ = this;
    return true;
  }
  turns_.slice_ns_ = kShortestNs;
  waits_ = true;
  const bool came =
      came_.wait_for(lock, most, [&] { return turns_.holder_ == this; });
  waits_ = false;
  return came;
}

inline void Turns::Place::Give() {
  const std::lock_guard<std::mutex> lock(turns_.mutex_);
  if (is_in_line_) turns_.Remove(*this);
  if (turns_.holder_ == this) turns_.GiveToNext();
}

inline void Turns::Append(Place& place) {
  Place** end = &first_;
  while (*end != nullptr) end = &(*end)->next_;
  *end = &place;
  place.next_ = nullptr;
  place.is_in_line_ = true;
}

inline void Turns::Remove(Place& place) {
  Place** at = &first_;
  while (*at != &place) at = &(*at)->next_;
  *at = place.next_;
  place.is_in_line_ = false;
}

inline void Turns::GiveToNext() {
  if (first_ == nullptr) slice_ns_ = std::min(2 * slice_ns_, kSliceNs);
  holder_ = first_;
  while (holder_ != nullptr && !holder_->waits_) holder_ = holder_->next_;
  if (holder_ == nullptr) return;
  Remove(*holder_);
  // Under the mutex: with the place its condition goes.
  holder_->came_.notify_one();
}

}  // namespace vmm::python

#endif  // VMMSHARE_VMM_PYTHON_CORE_TURNS_H_
