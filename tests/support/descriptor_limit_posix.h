// A process that has few descriptors left.
#ifndef VMMSHARE_TESTS_SUPPORT_DESCRIPTOR_LIMIT_POSIX_H_
#define VMMSHARE_TESTS_SUPPORT_DESCRIPTOR_LIMIT_POSIX_H_

#include <sys/resource.h>

#include <vector>

#include "platform/base/check.h"
#include "platform/ipc/channel.h"
#include "tests/support/must.h"

namespace vmm::testing {

// While it lives, this process may have `more` descriptors than are open now.
// What is asserted about that time is asserted after it: the sanitizers' own
// checks need descriptors.
class DescriptorLimit {
 public:
  explicit DescriptorLimit(int more) {
    platform::Check(::getrlimit(RLIMIT_NOFILE, &before_) == 0,
                    "getrlimit() failed");
    std::vector<platform::CancelEvent> all;
    for (int i = 0; i <= more; ++i) {
      all.push_back(Must(platform::CancelEvent::Create()));
    }
    rlimit limits = before_;
    limits.rlim_cur = static_cast<rlim_t>(all.back().handle().get());
    platform::Check(::setrlimit(RLIMIT_NOFILE, &limits) == 0,
                    "setrlimit() failed");
  }
  ~DescriptorLimit() {
    platform::Check(::setrlimit(RLIMIT_NOFILE, &before_) == 0,
                    "setrlimit() failed");
  }
  DescriptorLimit(const DescriptorLimit&) = delete;
  DescriptorLimit& operator=(const DescriptorLimit&) = delete;

 private:
  rlimit before_{};
};

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_SUPPORT_DESCRIPTOR_LIMIT_POSIX_H_
