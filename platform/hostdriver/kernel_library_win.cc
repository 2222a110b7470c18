#include <windows.h>

#include "platform/hostdriver/kernels.h"

namespace vmm::hostdriver {

VmmshareHostKernels OpenKernelLibrary(const std::string& path,
                                      std::string* why) {
  // "C:\..." or "\\server\...", which the system does not search for.
  if (path.size() < 3 || (path[1] != ':' && path.compare(0, 2, "\\\\") != 0)) {
    *why = "the path is not absolute";
    return nullptr;
  }
  const HMODULE library = LoadLibraryExA(
      path.c_str(), nullptr,
      LOAD_LIBRARY_SEARCH_DLL_LOAD_DIR | LOAD_LIBRARY_SEARCH_DEFAULT_DIRS);
  if (library == nullptr) {
    *why = "Windows error " + std::to_string(GetLastError());
    return nullptr;
  }
  const FARPROC found = GetProcAddress(library, "vmmshareHostKernels");
  if (found == nullptr) *why = "it exports no such function";
  return reinterpret_cast<VmmshareHostKernels>(reinterpret_cast<void*>(found));
}

}  // namespace vmm::hostdriver
