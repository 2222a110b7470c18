#include <windows.h>

#include "tests/os/unload.h"

namespace vmm::testing {

void* Load(const char* path) { return ::LoadLibraryA(path); }
void* Find(void* library, const char* symbol) {
  return reinterpret_cast<void*>(
      ::GetProcAddress(static_cast<HMODULE>(library), symbol));
}
void Unload(void* library) { ::FreeLibrary(static_cast<HMODULE>(library)); }

}  // namespace vmm::testing
