// The driver that a benchmark runs on, and this system's own kind of handle.
#ifndef VMMSHARE_BENCH_DRIVER_H_
#define VMMSHARE_BENCH_DRIVER_H_

#include <cstdlib>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "platform/cuda/driver.h"
#include "platform/os/os_handle.h"
#include "vmm/memory/handle_kind.h"

namespace bench {

// The file of the host-memory driver: what VMMSHARE_HOSTDRIVER names, else that
// of this build; empty if it has none.
inline std::string HostDriverPath() {
  const char* path = std::getenv("VMMSHARE_HOSTDRIVER");
  return path != nullptr ? path : VMMSHARE_HOSTDRIVER_PATH;
}

// As --driver says it: "system", a path, or "host" for the host-memory driver.
inline absl::StatusOr<vmm::platform::Driver> LoadDriver(
    const std::string& choice) {
  using vmm::platform::Driver;
  if (choice == "system") return Driver::LoadSystem();
  if (choice != "host") return Driver::LoadFrom(choice);
  const std::string host = HostDriverPath();
  if (host.empty()) {
    return absl::NotFoundError(
        "--driver=host: this build has no host-memory driver; build with "
        "VMMSHARE_BUILD_HOSTDRIVER=ON, or pass --driver=PATH of one");
  }
  return Driver::LoadFrom(host);
}

inline vmm::HandleKind NativeKind() {
  return vmm::platform::kNativeHandleIsPosixFd ? vmm::HandleKind::kPosixFd
                                               : vmm::HandleKind::kWin32;
}

}  // namespace bench

#endif  // VMMSHARE_BENCH_DRIVER_H_
