// Kills or stops this process at a chosen step of what it does.
//
//   ArmSteps({.effect = StepEffect::kKill, .nth = 7});
//   Share(driver);                 // Ends before its eighth step,
//   DisarmSteps();                 // or gets here, and had fewer.
//
// A step is a call through a FaultyDriver (driver_faults.h), a wrapped system
// call (syscall_faults.h), or a place that the program marks itself: one where
// it has written to memory that others see. All threads' steps are counted.
// Calls of a forked child are not.
#ifndef VMMSHARE_TESTS_SUPPORT_STEPS_H_
#define VMMSHARE_TESTS_SUPPORT_STEPS_H_

#include <cstdint>
#include <string>
#include <vector>

namespace vmm::testing {

enum class StepEffect {
  kCount,   // None.
  kKill,    // As KillThisProcess().
  kStop,    // SIGSTOP, while no thread of it is in a driver call that could
            // hold a lock of several processes. Goes on after SIGCONT.
  kHangUp,  // Hangs up all connections, then SIGSTOP: as a process that is
            // being killed, whose memory the system has yet to take down. No
            // thread makes another step meanwhile.
};

struct StepTrap {
  StepEffect effect = StepEffect::kCount;
  std::uint64_t nth = 0;  // From 0.
  bool after = false;     // When the call has been made, not before.
};

// Whether this system knows kStop and kHangUp.
bool StopsSupported();

// Starts counting, in this process. Thread-safe.
void ArmSteps(const StepTrap& trap);
// Ends it; the names of the steps since.
std::vector<std::string> DisarmSteps();

// A step of the program's own.
void MarkStep(const char* name);

namespace internal {

enum class StepKind { kDriverCall, kOther };

// One step, from its beginning to its end. `name` must be a literal.
class Step {
 public:
  explicit Step(const char* name, StepKind kind = StepKind::kOther);
  ~Step();
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

 private:
  StepKind kind_;
  bool springs_after_ = false;
  bool in_driver_ = false;
};

// Of each system. Neither returns before SIGCONT.
void StopThisProcess();
void HangUpAndStop();

}  // namespace internal
}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_SUPPORT_STEPS_H_
