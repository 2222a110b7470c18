#include "tests/support/test_driver.h"

#include <cstdlib>
#include <string_view>

#include "platform/base/check.h"

namespace vmm::testing {

bool OnHostMemoryDriver() {
  const char* choice = std::getenv("VMMSHARE_TEST_DRIVER");
  if (choice == nullptr || std::string_view(choice) == "host") return true;
  platform::Check(std::string_view(choice) == "system",
                  "VMMSHARE_TEST_DRIVER must be host or system");
  return false;
}

std::string HostDriverPath() {
  const char* path = std::getenv("VMMSHARE_HOSTDRIVER");
  return path != nullptr ? path : VMMSHARE_HOSTDRIVER_PATH;
}

const platform::Driver& TestDriver() {
  static const platform::Driver driver = [] {
    absl::StatusOr<platform::Driver> loaded =
        OnHostMemoryDriver() ? platform::Driver::LoadFrom(HostDriverPath())
                             : platform::Driver::LoadSystem();
    if (!loaded.ok()) platform::Die(loaded.status().ToString());
    return *std::move(loaded);
  }();
  return driver;
}

}  // namespace vmm::testing
