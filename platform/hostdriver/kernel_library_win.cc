#include <windows.h>

#include <algorithm>
#include <string>

#include "platform/hostdriver/kernels.h"

namespace vmm::hostdriver {

VmmshareHostKernels OpenKernelLibrary(const std::string& path,
                                      std::string* why) {
  // The search flags below do not take the other slash.
  std::string whole = path;
  std::replace(whole.begin(), whole.end(), '/', '\\');
  // "C:\..." or "\\server\...", which the system does not search for. What "C:x"
  // is depends on the working directory.
  if (whole.compare(0, 2, "\\\\") != 0 &&
      (whole.empty() || whole.compare(1, 2, ":\\") != 0)) {
    *why = "the path is not absolute";
    return nullptr;
  }
  const HMODULE library = LoadLibraryExA(
      whole.c_str(), nullptr,
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
