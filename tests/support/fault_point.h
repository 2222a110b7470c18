// FaultPoint: which call of a run fails. FaultTrigger: counts up to it.
//
// Shared by driver_faults.h and syscall_faults.h, so that a sweep walks both
// kinds of call in the same way.
#ifndef VMMSHARE_TESTS_SUPPORT_FAULT_POINT_H_
#define VMMSHARE_TESTS_SUPPORT_FAULT_POINT_H_

#include <cstdint>
#include <limits>
#include <thread>

namespace vmm::testing {

// What a failing call can leave behind. A release that fails for ever makes a
// leak unavoidable, so the two kinds are never failed together.
enum class CallKind {
  kAcquire,  // Gives something, or changes or asks something.
  kRelease,  // Gives something back.
  kAny,      // Of a fault: both, in the order of the calls.
  kNamed,    // Of a call: fails only where a fault names it.
};

// What a failed call does before it answers its error.
enum class FaultEffect {
  kNotPerformed,          // Nothing: the call was refused.
  kPerformedButReported,  // Its work: the effect is taken, the answer lost.
};

// The calls numbered nth .. nth + times - 1 fail, counted from 0 when armed.
struct FaultPoint {
  static constexpr std::uint64_t kForEver =
      std::numeric_limits<std::uint64_t>::max();

  std::uint64_t nth = 0;
  std::uint64_t times = 1;
  // Count and fail calls of the arming thread alone.
  bool this_thread_only = false;
};

// Counts calls. Not thread-safe: its owner locks.
class FaultTrigger {
 public:
  void Arm(const FaultPoint& point) {
    point_ = point;
    thread_ = std::this_thread::get_id();
    counted_ = 0;
    fired_ = 0;
    armed_ = true;
  }
  void Disarm() { armed_ = false; }

  // Counts one call of the calling thread; true when it is to fail.
  bool Count() {
    if (!armed_) return false;
    if (point_.this_thread_only && thread_ != std::this_thread::get_id()) {
      return false;
    }
    const std::uint64_t number = counted_++;
    const bool fires =
        number >= point_.nth && number - point_.nth < point_.times;
    if (fires) ++fired_;
    return fires;
  }

  bool armed() const { return armed_; }
  // Calls counted, and calls failed, since Arm.
  std::uint64_t counted() const { return counted_; }
  std::uint64_t fired() const { return fired_; }

 private:
  FaultPoint point_;
  std::thread::id thread_;
  std::uint64_t counted_ = 0;
  std::uint64_t fired_ = 0;
  bool armed_ = false;
};

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_SUPPORT_FAULT_POINT_H_
