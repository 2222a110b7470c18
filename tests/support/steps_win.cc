// A process does not suspend all of its own threads here.
#include "platform/base/check.h"
#include "tests/support/steps.h"

namespace vmm::testing {

bool StopsSupported() { return false; }

namespace internal {

void StopThisProcess() { platform::Die("no process stops itself on Windows"); }
void HangUpAndStop() { StopThisProcess(); }

}  // namespace internal
}  // namespace vmm::testing
