// Deadline: until when a call may wait, by a clock that nobody sets.
//
// Users say absl::Now() + absl::Seconds(5). absl::Now() is the time of day,
// which an administrator or a time server may set back or forward while the
// call waits. So a time becomes a Deadline where it enters the library, once,
// and from there on the waiting goes by the system's monotonic clock.
#ifndef VMMSHARE_PLATFORM_OS_DEADLINE_H_
#define VMMSHARE_PLATFORM_OS_DEADLINE_H_

#include <chrono>

#include "absl/time/time.h"

namespace vmm::platform {

class Deadline {
 public:
  // As far from now as `time` is. absl::InfiniteFuture() never passes, and
  // absl::InfinitePast() has. Implicit, for every call that takes a Deadline is
  // called with a time.
  Deadline(absl::Time time);  // NOLINT(google-explicit-constructor)

  // `time` from now.
  static Deadline In(absl::Duration time);

  // Never below zero; absl::InfiniteDuration() of one that never passes.
  absl::Duration Left() const;
  bool Passed() const { return Left() == absl::ZeroDuration(); }

  // Left() for the standard library and the kernel, which overflow on a time
  // without end: at most a year, so that whoever waits looks again.
  std::chrono::nanoseconds Slice() const;

  Deadline operator-(absl::Duration earlier) const {
    return Deadline(at_ - earlier);
  }
  bool operator<(const Deadline& other) const { return at_ < other.at_; }

 private:
  explicit Deadline(absl::Duration at) : at_(at) {}

  absl::Duration at_;  // By the monotonic clock.
};

}  // namespace vmm::platform

namespace vmm {
using platform::Deadline;
}  // namespace vmm

#endif  // VMMSHARE_PLATFORM_OS_DEADLINE_H_
