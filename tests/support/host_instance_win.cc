#include <cstdlib>
#include <string>

#include "tests/support/host_instance.h"
#include "tests/support/test_driver.h"

namespace vmm::testing {

void UseAHostInstanceOfOwn() {
  if (std::getenv("VMMSHARE_HOST_INSTANCE") != nullptr) return;
  const std::string name = HostInstanceName();
  // Through the C runtime, whose copy getenv() reads; it tells the system.
  ::_putenv_s("VMMSHARE_HOST_INSTANCE", name.c_str());
}

void UseAChannelDirectoryOfOwn() {}

void UseTheHostMemoryDriver() { ::_putenv_s("VMMSHARE_TEST_DRIVER", "host"); }

}  // namespace vmm::testing
