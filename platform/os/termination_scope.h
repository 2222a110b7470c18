// TerminationScope: HoldTermination() for a while.
#ifndef VMMSHARE_PLATFORM_OS_TERMINATION_SCOPE_H_
#define VMMSHARE_PLATFORM_OS_TERMINATION_SCOPE_H_

#include <memory>

namespace vmm::platform {

// When it is destroyed, requests to end do to this thread, and on Windows to this
// process, what they did when it was made. What came meanwhile and nobody waited
// for does it then. For a library, whose caller goes on afterwards. REQUIRES: made
// and destroyed on one thread.
class TerminationScope {
 public:
  TerminationScope();
  ~TerminationScope();
  TerminationScope(const TerminationScope&) = delete;
  TerminationScope& operator=(const TerminationScope&) = delete;

 private:
  struct Before;
  std::unique_ptr<const Before> before_;
};

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_OS_TERMINATION_SCOPE_H_
