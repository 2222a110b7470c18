#include "platform/base/check.h"
#include "tests/support/fork.h"

namespace vmm::testing {

bool MayFork() { return false; }
int RunInFork(const std::function<int()>&) {
  platform::Die("Windows has no fork");
}
void RunApart(const std::function<void()>&) {
  platform::Die("Windows has no fork");
}

}  // namespace vmm::testing
