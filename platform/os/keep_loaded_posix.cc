#include "platform/os/keep_loaded_posix.h"

#include <dlfcn.h>

namespace vmm::platform {

void KeepLoaded(const void* inside) {
  // Of the program itself no such library is known.
  Dl_info about = {};
  if (::dladdr(inside, &about) != 0) {
    ::dlopen(about.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
  }
}

}  // namespace vmm::platform
