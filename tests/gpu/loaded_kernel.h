// The library's kernels, loaded before a test looks at what is free.
#ifndef VMMSHARE_TESTS_GPU_LOADED_KERNEL_H_
#define VMMSHARE_TESTS_GPU_LOADED_KERNEL_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "tests/gpu/vmm_driver_test.h"
#include "tests/support/must.h"
#include "vmm/memory/allocation.h"
#include "vmm/memory/internal/pinned_bytes.h"
#include "vmm/weights/internal/checksum_kernel.h"

namespace vmm::testing {

// The first base of a test that has checksums taken. A real driver loads a kernel
// when it is first launched in a context, and keeps 2 MiB for that of checksums
// (measured).
class LoadedKernel {
 protected:
  LoadedKernel() {
    KeepContexts();
    const Device device = Must(Device::ByOrdinal(TestDriver(), 0));
    const auto kernel = weights::ChecksumKernel::Load(device);
    if (absl::IsUnimplemented(kernel.status())) return;
    const Allocation memory = Must(Allocation::Create(device, {.size = 1024}));
    const auto context = std::make_shared<const PrimaryContext>(
        Must(PrimaryContext::Retain(device)));
    const CurrentContext current = Must(context->MakeCurrent());
    const PinnedBytes pinned = Must(PinnedBytes::Pin(device, context, 4096));
    const AddressSpan range = {memory.address(), 1024};
    Must(Must(kernel).Take({&range, 1},
                           {static_cast<std::uint32_t*>(pinned.at()), 1024}));
  }
};

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_GPU_LOADED_KERNEL_H_
