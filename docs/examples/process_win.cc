#include <windows.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "docs/examples/process.h"
#include "platform/os/os_error.h"
#include "platform/os/os_handle.h"
#include "platform/os/utf16_win.h"

namespace examples {
namespace {

using vmm::platform::OsError;
using vmm::platform::OsHandle;
using vmm::platform::Process;
using vmm::platform::QuotedWord;
using vmm::platform::ToUtf16;

// This process's environment with `changes`, as CreateProcessW takes it.
absl::StatusOr<std::wstring> Environment(
    const std::map<std::string, std::string>& changes) {
  std::map<std::wstring, std::wstring> wide;
  for (const auto& [name, value] : changes) {
    absl::StatusOr<std::wstring> wide_name = ToUtf16(name);
    if (!wide_name.ok()) return wide_name.status();
    absl::StatusOr<std::wstring> wide_value = ToUtf16(value);
    if (!wide_value.ok()) return wide_value.status();
    wide[*std::move(wide_name)] = *std::move(wide_value);
  }
  std::wstring result;
  wchar_t* const block = ::GetEnvironmentStringsW();
  for (const wchar_t* entry = block; *entry != L'\0';) {
    const std::wstring text = entry;
    entry += text.size() + 1;
    // Not at 0: the working directories of drives stand there as "=C:=C:\...".
    if (!wide.contains(text.substr(0, text.find(L'=', 1)))) {
      result.append(text).append(1, L'\0');
    }
  }
  ::FreeEnvironmentStringsW(block);
  for (const auto& [name, value] : wide) {
    result.append(name).append(L"=").append(value).append(1, L'\0');
  }
  result += L'\0';
  return result;
}

HANDLE Raw(const Process& process) {
  return reinterpret_cast<HANDLE>(process.handle().get());
}

}  // namespace

absl::StatusOr<ChildProcess> ChildProcess::StartSelf(
    const std::vector<std::string>& args,
    const std::map<std::string, std::string>& env) {
  std::vector<wchar_t> program(32768);
  ::GetModuleFileNameW(nullptr, program.data(),
                       static_cast<DWORD>(program.size()));
  std::wstring line = QuotedWord(program.data());
  for (const std::string& arg : args) {
    absl::StatusOr<std::wstring> wide = ToUtf16(arg);
    if (!wide.ok()) return wide.status();
    line += L" " + QuotedWord(*wide);
  }
  absl::StatusOr<std::wstring> environment = Environment(env);
  if (!environment.ok()) return environment.status();
  STARTUPINFOW startup = {};
  startup.cb = sizeof(startup);
  PROCESS_INFORMATION started = {};
  // It prints to this process's console; it inherits no other handle.
  if (::CreateProcessW(program.data(), line.data(), nullptr, nullptr,
                       /*inherit=*/FALSE, CREATE_UNICODE_ENVIRONMENT,
                       environment->data(), nullptr, &startup, &started) == 0) {
    return OsError(static_cast<int>(::GetLastError()),
                   "CreateProcessW(this program)");
  }
  ::CloseHandle(started.hThread);
  return ChildProcess(
      started.dwProcessId,
      Process::FromHandle(
          OsHandle::Adopt(reinterpret_cast<std::intptr_t>(started.hProcess)),
          started.dwProcessId));
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, 0)), process_(std::move(other.process_)) {}

ChildProcess::~ChildProcess() {
  if (pid_ == 0) return;
  Kill();
  Reap();
}

void ChildProcess::Kill() {
  if (pid_ != 0) ::TerminateProcess(Raw(process_), EXIT_FAILURE);
}

absl::Status ChildProcess::Wait(absl::Time deadline) {
  absl::Status ended = process_.WaitForExit(deadline);
  if (!ended.ok()) return ended;
  const std::int64_t pid = pid_;
  if (const int status = Reap(); status != 0) {
    return absl::AbortedError(
        absl::StrCat("process ", pid, " ended with exit status ", status));
  }
  return absl::OkStatus();
}

int ChildProcess::Reap() {
  pid_ = 0;
  ::WaitForSingleObject(Raw(process_), INFINITE);
  DWORD status = EXIT_FAILURE;
  ::GetExitCodeProcess(Raw(process_), &status);
  return static_cast<int>(status);
}

}  // namespace examples
