#include <dlfcn.h>

#include "tests/os/unload.h"

namespace vmm::testing {

void* Load(const char* path) { return ::dlopen(path, RTLD_NOW | RTLD_LOCAL); }
void* Find(void* library, const char* symbol) {
  return ::dlsym(library, symbol);
}
void Unload(void* library) { ::dlclose(library); }

}  // namespace vmm::testing
