// Fails a chosen system call of this process.
//
// Every function through which platform/*_posix.cc enters the kernel is
// replaced at link time (ld --wrap; the list is in CMakeLists.txt, target
// vmmshare_test_faults, which tests link for it). Unarmed, a call passes
// straight through. Libraries linked dynamically, the host-memory driver among
// them, keep their own calls.
//
//   ArmSyscallFault({.point = {.nth = 3}});
//   absl::Status status = Share(...);            // its fourth call fails
//   SyscallOutcome outcome = DisarmSyscallFault();
//
// tests/os/syscall_faults_test.cc proves that nothing is left out. Each call is
// a step as well, at which steps.h can end the process.
#ifndef VMMSHARE_TESTS_SUPPORT_SYSCALL_FAULTS_H_
#define VMMSHARE_TESTS_SUPPORT_SYSCALL_FAULTS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/support/fault_point.h"

namespace vmm::testing {

// A row of the table of system calls.
struct SyscallRow {
  std::string name;  // As wrapped: "accept4", "syscall(pidfd_open)".
  CallKind kind;
  std::vector<int> errors;  // That its manual documents; transient ones last.
};

struct SyscallFault {
  // For ever, a transient error (IsTransient) is not answered: its call would
  // be made again and again.
  FaultPoint point = {};
  CallKind calls = CallKind::kAcquire;
  // Which of the call's documented errors to answer. When a call has fewer,
  // it is performed and outcome.no_such_error is set.
  std::size_t error_index = 0;
  // If not 0: count and fail only calls that document this error, with it
  // (EINTR: a storm of interrupts).
  int only_error = 0;
  // If not empty: count and fail only calls of this name. Then `only_error` may
  // be any error, and must be one.
  std::string only_call = {};
  // Called once, when the first call has failed.
  std::function<void()> then = {};
};

struct SyscallOutcome {
  struct Failed {
    std::string call;
    int error = 0;
    CallKind kind = CallKind::kAcquire;
  };
  std::uint64_t counted = 0;   // Calls of the chosen kind since arming.
  std::uint64_t fired = 0;     // Calls at which the fault was due.
  std::vector<Failed> failed;  // Calls that failed.
  bool no_such_error = false;  // See SyscallFault::error_index.
  std::vector<long> unlisted;  // syscall() numbers the table lacks.
};

// Whether system calls can be failed here: on Linux, in a program that links
// vmmshare_test_faults with static vmmshare libraries.
bool SyscallFaultsSupported();

// Starts counting towards `fault`, in this process only. Thread-safe.
void ArmSyscallFault(const SyscallFault& fault);
SyscallOutcome DisarmSyscallFault();

// Calls made while armed, of both kinds, by name, since the program started.
std::map<std::string, std::uint64_t> SyscallsByName();

// Every call that can be failed.
std::vector<SyscallRow> SyscallTable();

// Whether `error` is one after which the same call is simply made again.
bool IsTransient(int error);
// The name of an errno: "EMFILE".
std::string ErrnoName(int error);

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_SUPPORT_SYSCALL_FAULTS_H_
