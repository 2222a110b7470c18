#include <signal.h>

#include <memory>
#include <utility>

#include "platform/base/check.h"
#include "platform/os/termination_scope.h"

namespace vmm::platform {

struct TerminationScope::Before {
  sigset_t mask;
};

TerminationScope::TerminationScope() {
  auto before = std::make_unique<Before>();
  Check(pthread_sigmask(SIG_SETMASK, nullptr, &before->mask) == 0,
        "the thread's blocked signals cannot be asked for");
  before_ = std::move(before);
}

TerminationScope::~TerminationScope() {
  Check(pthread_sigmask(SIG_SETMASK, &before_->mask, nullptr) == 0,
        "the thread's blocked signals cannot be set");
}

}  // namespace vmm::platform
