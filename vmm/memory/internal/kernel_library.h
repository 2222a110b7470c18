// KernelLibrary: kernels of vmmshare's own; internal to vmm/.
//
// They are PTX, in the source that launches them: the driver assembles it, so that
// no compiler is needed and no architecture is chosen here.
#ifndef VMMSHARE_VMM_MEMORY_INTERNAL_KERNEL_LIBRARY_H_
#define VMMSHARE_VMM_MEMORY_INTERNAL_KERNEL_LIBRARY_H_

#include <cuda.h>

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "platform/cuda/driver.h"
#include "vmm/memory/device.h"

namespace vmm {

// Is loaded once in a process and never unloaded: a kernel may be under way when
// whoever launched it goes. Of no context; a kernel runs in its stream's.
// Thread-safe.
class KernelLibrary {
 public:
  // `ptx` is text that stays where it is. UNIMPLEMENTED where the driver has no
  // libraries (before CUDA 12.0), or the device is older than Volta.
  static absl::StatusOr<KernelLibrary> Of(const Device& device,
                                          const char* ptx);

  // UNIMPLEMENTED where the driver makes no machine code of the text, for which it is
  // too old, say: it reads that here (measured).
  absl::StatusOr<CUfunction> Find(const char* name) const;
  // One launch, of blocks in one dimension. The first in a context may have to
  // wait for the GPU: the driver puts off loading until then. So launch once
  // before streams wait for each other.
  absl::Status Launch(CUfunction kernel, unsigned int blocks,
                      unsigned int threads, CUstream stream,
                      void** arguments) const;

 private:
  KernelLibrary(platform::Driver driver, CUlibrary library)
      : driver_(std::move(driver)), library_(library) {}
  platform::Driver driver_;
  CUlibrary library_;
};

}  // namespace vmm

#endif  // VMMSHARE_VMM_MEMORY_INTERNAL_KERNEL_LIBRARY_H_
