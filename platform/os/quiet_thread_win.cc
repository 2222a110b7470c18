#include <windows.h>

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "platform/os/quiet_thread.h"

// Exported by kernel32.dll since Windows 10; mingw-w64's headers lack it.
extern "C" WINBASEAPI HRESULT WINAPI SetThreadDescription(HANDLE thread,
                                                          PCWSTR name);

namespace vmm::platform {

void StartQuietly(absl::FunctionRef<void()> start) { start(); }

void NameThisThread(const char* name) {
  const absl::string_view text = name;
  const std::wstring wide(text.begin(), text.end());
  ::SetThreadDescription(::GetCurrentThread(), wide.c_str());
}

}  // namespace vmm::platform
