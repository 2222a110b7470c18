#include "tests/support/kernel.h"

namespace vmm::testing {

bool KernelNamesSenders() { return true; }

}  // namespace vmm::testing
