// A user's program: loads the driver whose path is its first argument.
#include <platform/cuda/driver.h>

#include <cstdio>

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: consumer DRIVER_FILE\n");
    return 2;
  }
  absl::StatusOr<vmm::platform::Driver> driver =
      vmm::platform::Driver::LoadFrom(argv[1]);
  if (!driver.ok()) {
    std::fprintf(stderr, "%s\n", driver.status().ToString().c_str());
    return 1;
  }
  std::printf("%s\n", driver->Describe().c_str());
  return driver->is_host_memory() ? 0 : 1;
}
