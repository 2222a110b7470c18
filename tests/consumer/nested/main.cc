#include <cstdio>

#include "platform/cuda/driver.h"

int main() {
  absl::StatusOr<vmm::platform::Driver> driver =
      vmm::platform::Driver::LoadFrom("no/absolute/path");
  std::printf("%s\n", driver.status().ToString().c_str());
  return absl::IsInvalidArgument(driver.status()) ? 0 : 1;
}
