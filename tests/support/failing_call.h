// FailingCall: one system call, by its name, that fails while a test looks at
// what its caller makes of it. Where every call is to be failed: sweep.h.
#ifndef VMMSHARE_TESTS_SUPPORT_FAILING_CALL_H_
#define VMMSHARE_TESTS_SUPPORT_FAILING_CALL_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>

#include "tests/support/fault_point.h"
#include "tests/support/syscall_faults.h"

namespace vmm::testing {

// While it lives, the calls of `name` numbered nth .. nth + times - 1 that this
// thread makes fail with `error`. Fails the test if none was made. Needs what
// ArmSyscallFault() needs.
class FailingCall {
 public:
  FailingCall(std::string name, int error, std::uint64_t nth = 0,
              std::uint64_t times = 1)
      : name_(std::move(name)) {
    ArmSyscallFault({.point = {nth, times, /*this_thread_only=*/true},
                     .only_error = error,
                     .only_call = name_});
  }
  ~FailingCall() {
    EXPECT_GT(DisarmSyscallFault().fired, 0u) << name_ << " was not called";
  }
  FailingCall(const FailingCall&) = delete;
  FailingCall& operator=(const FailingCall&) = delete;

 private:
  const std::string name_;
};

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_SUPPORT_FAILING_CALL_H_
