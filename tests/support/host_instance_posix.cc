#include <stdlib.h>
#include <unistd.h>

#include <cstdint>
#include <string>

#include "tests/support/host_instance.h"
#include "tests/support/test_driver.h"

namespace vmm::testing {

void UseAHostInstanceOfOwn() {
  const std::string name =
      HostInstanceName(static_cast<std::uint64_t>(::getpid()));
  ::setenv("VMMSHARE_HOST_INSTANCE", name.c_str(), /*overwrite=*/0);
}

void UseTheHostMemoryDriver() {
  ::setenv("VMMSHARE_TEST_DRIVER", "host", /*overwrite=*/1);
}

}  // namespace vmm::testing
