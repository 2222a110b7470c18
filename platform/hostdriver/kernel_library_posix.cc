#include <dlfcn.h>

#include "platform/hostdriver/kernels.h"

namespace vmm::hostdriver {

VmmshareHostKernels OpenKernelLibrary(const std::string& path,
                                      std::string* why) {
  if (path.empty() || path[0] != '/') {
    *why = "the path is not absolute";
    return nullptr;
  }
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  void* const found =
      library == nullptr ? nullptr : dlsym(library, "vmmshareHostKernels");
  if (found == nullptr) {
    const char* const text = dlerror();
    *why = text == nullptr ? "it is null there" : text;
  }
  return reinterpret_cast<VmmshareHostKernels>(found);
}

}  // namespace vmm::hostdriver
