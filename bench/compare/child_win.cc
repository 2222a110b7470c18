#include <windows.h>

#include <cstdlib>

#include "bench/compare/child.h"
#include "platform/os/os_error.h"
#include "platform/os/os_handle.h"
#include "platform/os/utf16_win.h"

namespace bench::compare {
namespace {

using vmm::platform::OsError;
using vmm::platform::OsHandle;
using vmm::platform::Process;
using vmm::platform::QuotedWord;
using vmm::platform::ToUtf16;

HANDLE Raw(const Process& process) {
  return reinterpret_cast<HANDLE>(process.handle().get());
}

}  // namespace

absl::StatusOr<Child> Child::StartSelf(const std::vector<std::string>& args) {
  std::vector<wchar_t> program(32768);
  ::GetModuleFileNameW(nullptr, program.data(),
                       static_cast<DWORD>(program.size()));
  std::wstring line = QuotedWord(program.data());
  for (const std::string& arg : args) {
    absl::StatusOr<std::wstring> wide = ToUtf16(arg);
    if (!wide.ok()) return wide.status();
    line += L" " + QuotedWord(*wide);
  }
  STARTUPINFOW startup = {};
  startup.cb = sizeof(startup);
  PROCESS_INFORMATION started = {};
  // It prints to this process's console; it inherits no other handle.
  if (::CreateProcessW(program.data(), line.data(), nullptr, nullptr,
                       /*bInheritHandles=*/FALSE, 0, nullptr, nullptr, &startup,
                       &started) == 0) {
    return OsError(static_cast<int>(::GetLastError()),
                   "CreateProcessW(this program)");
  }
  ::CloseHandle(started.hThread);
  return Child(
      started.dwProcessId,
      Process::FromHandle(
          OsHandle::Adopt(reinterpret_cast<std::intptr_t>(started.hProcess)),
          started.dwProcessId));
}

void Child::Kill() {
  if (pid_ != 0) ::TerminateProcess(Raw(process_), EXIT_FAILURE);
}

int Child::Reap() {
  pid_ = 0;
  ::WaitForSingleObject(Raw(process_), INFINITE);
  DWORD status = EXIT_FAILURE;
  ::GetExitCodeProcess(Raw(process_), &status);
  return static_cast<int>(status);
}

}  // namespace bench::compare
