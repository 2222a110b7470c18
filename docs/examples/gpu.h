// A device, ready for copies.
#ifndef VMMSHARE_DOCS_EXAMPLES_GPU_H_
#define VMMSHARE_DOCS_EXAMPLES_GPU_H_

#include "absl/status/statusor.h"
#include "platform/cuda/driver.h"
#include "vmm/vmm.h"

namespace examples {

// Copies use the device's primary context; sharing needs none. Move-only.
struct Gpu {
  vmm::Device device;
  vmm::PrimaryContext context;
  vmm::CurrentContext current;  // On the thread that made this.
};

// The device that --device names, the first unless given.
absl::StatusOr<Gpu> UseGpu(const vmm::platform::Driver& driver);

}  // namespace examples

#endif  // VMMSHARE_DOCS_EXAMPLES_GPU_H_
