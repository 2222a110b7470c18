#include "vmm/memory/internal/kernel_library.h"

#include <map>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "platform/base/mutex.h"
#include "platform/base/status_macros.h"
#include "vmm/memory/internal/device_attribute.h"

namespace vmm {
namespace {

using platform::Driver;
using platform::DriverTable;

// Acquire and release are instructions from there on.
constexpr int kLeastMajor = 7;

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

// UNIMPLEMENTED of a driver that makes no machine code of PTX: it is too old, was
// told not to (CUDA_DISABLE_PTX_JIT), or its compiler is not installed.
absl::Status ErrorOf(const Driver& driver, CUresult result,
                     const std::string& call) {
  absl::Status error = driver.Error(result, call);
  switch (result) {
    case CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
    case CUDA_ERROR_JIT_COMPILER_NOT_FOUND:
    case CUDA_ERROR_JIT_COMPILATION_DISABLED:
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
      return absl::UnimplementedError(absl::StrCat(
          error.message(),
          ". The driver makes no machine code of vmmshare's kernels: it is "
          "older than they need, CUDA_DISABLE_PTX_JIT is set, or "
          "libnvidia-ptxjitcompiler is not installed"));
    default:
      return error;
  }
}

}  // namespace

absl::StatusOr<KernelLibrary> KernelLibrary::Of(const Device& device,
                                                const char* ptx) {
  const Driver& driver = device.driver();
  RETURN_IF_ERROR(driver.Need<&DriverTable::cuLibraryLoadData>());
  RETURN_IF_ERROR(driver.Need<&DriverTable::cuLibraryGetKernel>());
  RETURN_IF_ERROR(driver.Need<&DriverTable::cuLaunchKernel>());
  ASSIGN_OR_RETURN(
      const int major,
      DeviceAttribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                      "COMPUTE_CAPABILITY_MAJOR"));
  if (major < kLeastMajor) {
    return absl::UnimplementedError(
        absl::StrCat(device.Describe(), " has compute capability ", major,
                     ".x; vmmshare's kernels need ", kLeastMajor, ".0"));
  }
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
  if (r != CUDA_SUCCESS) {
    return ErrorOf(driver, r, "cuLibraryLoadData() of vmmshare's kernels");
  }
  const platform::MutexLock lock(loaded.mutex);
  // Another thread may have come first. Its own is used then, and this one stays
  // as well, as small as it is.
  return KernelLibrary(driver,
                       loaded.libraries.emplace(key, library).first->second);
}

absl::StatusOr<CUfunction> KernelLibrary::Find(const char* name) const {
  CUkernel found = nullptr;
  const CUresult r = driver_->cuLibraryGetKernel(&found, library_, name);
  if (r != CUDA_SUCCESS) {
    return ErrorOf(driver_, r, absl::StrCat("cuLibraryGetKernel(", name, ")"));
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
  return ErrorOf(driver_, r,
                 absl::StrCat("cuLaunchKernel(", blocks, " blocks of ", threads,
                              " threads)"));
}

}  // namespace vmm
