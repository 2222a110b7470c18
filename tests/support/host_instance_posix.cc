#include <stdlib.h>
#include <unistd.h>

#include <string>

#include "tests/support/test_driver.h"

namespace vmm::testing {

void UseAHostInstanceOfOwn() {
  const std::string name = "test-" + std::to_string(::getpid());
  ::setenv("VMMSHARE_HOST_INSTANCE", name.c_str(), /*overwrite=*/0);
}

void UseTheHostMemoryDriver() {
  ::setenv("VMMSHARE_TEST_DRIVER", "host", /*overwrite=*/1);
}

}  // namespace vmm::testing
