#include "vmm/memory/internal/kernel_library.h"

#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "platform/base/mutex.h"
#include "platform/base/status_macros.h"

namespace vmm {
namespace {

using platform::Driver;
using platform::DriverTable;

// Which text, as which driver.
using Key = std::pair<decltype(DriverTable::cuLibraryLoadData), const char*>;

struct Loaded {
  platform::Mutex mutex;
  std::map<Key, CUlibrary> libraries ABSL_GUARDED_BY(mutex);
};

// Never destroyed: streams may still run at the program's end.
Loaded& AllLoaded() {
  static Loaded& loaded = *new Loaded;
  return loaded;
}

}  // namespace

absl::StatusOr<KernelLibrary> KernelLibrary::Of(const Driver& driver,
                                                const char* ptx) {
  RETURN_IF_ERROR(driver.Need<&DriverTable::cuLibraryLoadData>());
  RETURN_IF_ERROR(driver.Need<&DriverTable::cuLibraryGetKernel>());
  RETURN_IF_ERROR(driver.Need<&DriverTable::cuLaunchKernel>());
  Loaded& loaded = AllLoaded();
  const Key key(driver->cuLibraryLoadData, ptx);
  {
    const platform::MutexLock lock(loaded.mutex);
    const auto found = loaded.libraries.find(key);
    if (found != loaded.libraries.end()) {
      return KernelLibrary(driver, found->second);
    }
  }
  CUlibrary library = nullptr;
  const CUresult r = driver->cuLibraryLoadData(&library, ptx, nullptr, nullptr,
                                               0, nullptr, nullptr, 0);
  if (r == CUDA_ERROR_UNSUPPORTED_PTX_VERSION) {
    return absl::UnimplementedError(
        "cuLibraryLoadData() of vmmshare's kernels answered CUDA_ERROR_"
        "UNSUPPORTED_PTX_VERSION: the driver is older than they need");
  }
  if (r != CUDA_SUCCESS) {
    return driver.Error(r, "cuLibraryLoadData() of vmmshare's kernels");
  }
  const platform::MutexLock lock(loaded.mutex);
  // Another thread may have come first. Its own is used then, and this one stays
  // as well, as small as it is.
  return KernelLibrary(driver,
                       loaded.libraries.emplace(key, library).first->second);
}

absl::StatusOr<CUfunction> KernelLibrary::Find(const char* name) const {
  CUkernel found = nullptr;
  if (CUresult r = driver_->cuLibraryGetKernel(&found, library_, name);
      r != CUDA_SUCCESS) {
    return driver_.Error(r, absl::StrCat("cuLibraryGetKernel(", name, ")"));
  }
  // As cuLaunchKernel() takes it.
  return reinterpret_cast<CUfunction>(found);
}

absl::Status KernelLibrary::Launch(CUfunction kernel, unsigned int blocks,
                                   unsigned int threads, CUstream stream,
                                   void** arguments) const {
  const CUresult r = driver_->cuLaunchKernel(kernel, blocks, 1, 1, threads, 1,
                                             1, 0, stream, arguments, nullptr);
  if (r == CUDA_SUCCESS) return absl::OkStatus();
  return driver_.Error(r, absl::StrCat("cuLaunchKernel(", blocks, " blocks of ",
                                       threads, " threads)"));
}

}  // namespace vmm
