#include "vmm/memory/internal/kernel_module.h"

#include <map>
#include <tuple>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "platform/base/mutex.h"
#include "platform/base/status_macros.h"

namespace vmm {
namespace {

using platform::Driver;
using platform::DriverTable;

// Which text in which context, as which driver knows it. The number tells a
// context from a later one at the same address.
using Key = std::tuple<decltype(DriverTable::cuModuleLoadData), CUcontext,
                       unsigned long long, const char*>;

struct Loaded {
  platform::Mutex mutex;
  std::map<Key, CUmodule> modules ABSL_GUARDED_BY(mutex);
};

// Never destroyed: streams may still run at the program's end.
Loaded& AllLoaded() {
  static Loaded& loaded = *new Loaded;
  return loaded;
}

}  // namespace

absl::StatusOr<KernelModule> KernelModule::In(const Driver& driver,
                                              const PrimaryContext& context,
                                              const char* ptx) {
  RETURN_IF_ERROR(driver.Need<&DriverTable::cuCtxGetId>());
  RETURN_IF_ERROR(driver.Need<&DriverTable::cuModuleLoadData>());
  RETURN_IF_ERROR(driver.Need<&DriverTable::cuModuleGetFunction>());
  RETURN_IF_ERROR(driver.Need<&DriverTable::cuLaunchKernel>());
  unsigned long long number = 0;
  if (CUresult r = driver->cuCtxGetId(context.context(), &number);
      r != CUDA_SUCCESS) {
    return driver.Error(r, "cuCtxGetId()");
  }
  Loaded& loaded = AllLoaded();
  const Key key(driver->cuModuleLoadData, context.context(), number, ptx);
  {
    const platform::MutexLock lock(loaded.mutex);
    const auto found = loaded.modules.find(key);
    if (found != loaded.modules.end())
      return KernelModule(driver, found->second);
  }
  ASSIGN_OR_RETURN(const CurrentContext current, context.MakeCurrent());
  CUmodule module = nullptr;
  const CUresult r = driver->cuModuleLoadData(&module, ptx);
  if (r == CUDA_ERROR_UNSUPPORTED_PTX_VERSION) {
    return absl::UnimplementedError(
        "cuModuleLoadData() of vmmshare's kernels returned CUDA_ERROR_"
        "UNSUPPORTED_PTX_VERSION: the driver is older than they need");
  }
  if (r != CUDA_SUCCESS) {
    return driver.Error(r, "cuModuleLoadData() of vmmshare's kernels");
  }
  const platform::MutexLock lock(loaded.mutex);
  // Another thread may have come first. Its own is used then, and this one stays
  // as well, as small as it is: to unload could wait for the GPU.
  return KernelModule(driver,
                      loaded.modules.emplace(key, module).first->second);
}

absl::StatusOr<CUfunction> KernelModule::Find(const char* name) const {
  CUfunction found = nullptr;
  if (CUresult r = driver_->cuModuleGetFunction(&found, module_, name);
      r != CUDA_SUCCESS) {
    return driver_.Error(r, absl::StrCat("cuModuleGetFunction(", name, ")"));
  }
  return found;
}

absl::Status KernelModule::Launch(CUfunction kernel, unsigned int blocks,
                                  unsigned int threads, CUstream stream,
                                  void** arguments) const {
  const CUresult r = driver_->cuLaunchKernel(kernel, blocks, 1, 1, threads, 1,
                                             1, 0, stream, arguments, nullptr);
  if (r == CUDA_SUCCESS) return absl::OkStatus();
  return driver_.Error(r, absl::StrCat("cuLaunchKernel(", blocks, " blocks of ",
                                       threads, " threads)"));
}

}  // namespace vmm
