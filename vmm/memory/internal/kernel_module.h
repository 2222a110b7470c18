// KernelModule: kernels of the library's own, in a device's primary context;
// internal to vmm/.
//
// They are PTX, in the source that launches them: the driver assembles it, so that
// no compiler is needed and no architecture is chosen here.
#ifndef VMMSHARE_VMM_MEMORY_INTERNAL_KERNEL_MODULE_H_
#define VMMSHARE_VMM_MEMORY_INTERNAL_KERNEL_MODULE_H_

#include <cuda.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "platform/cuda/driver.h"
#include "vmm/memory/primary_context.h"

namespace vmm {

// A module that is loaded once in a context's life and unloaded with the context,
// not before: a kernel may be under way when whoever launched it goes. Thread-safe.
class KernelModule {
 public:
  // `ptx` is text that stays where it is. UNIMPLEMENTED where the driver has no
  // kernels, or is too old for this text (before CUDA 12.0). It may have to wait
  // for the GPU: load before streams wait for each other.
  static absl::StatusOr<KernelModule> In(const platform::Driver& driver,
                                         const PrimaryContext& context,
                                         const char* ptx);

  absl::StatusOr<CUfunction> Find(const char* name) const;
  // One launch, of blocks in one dimension. `stream` is of the module's context.
  absl::Status Launch(CUfunction kernel, unsigned int blocks,
                      unsigned int threads, CUstream stream,
                      void** arguments) const;

 private:
  KernelModule(platform::Driver driver, CUmodule module)
      : driver_(std::move(driver)), module_(module) {}
  platform::Driver driver_;
  CUmodule module_;
};

}  // namespace vmm

#endif  // VMMSHARE_VMM_MEMORY_INTERNAL_KERNEL_MODULE_H_
