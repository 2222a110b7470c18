#include <gtest/gtest.h>
#include <windows.h>

#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/types/span.h"
#include "platform/base/check.h"
#include "platform/ipc/pipe_win.h"
#include "platform/os/os_error.h"
#include "platform/os/utf16_win.h"
#include "tests/ipc/program.h"
#include "tests/support/command_line_win.h"

namespace vmm::testing {
namespace {

using platform::OsHandle;
using platform::Raw;

// The running programs, by id.
std::map<std::int64_t, OsHandle>& Processes() {
  static auto* processes = new std::map<std::int64_t, OsHandle>;
  return *processes;
}

OsHandle Own(HANDLE handle) {
  return OsHandle::Adopt(reinterpret_cast<std::intptr_t>(handle));
}

}  // namespace

std::string FolderOfThisProgram() {
  std::vector<wchar_t> path(32768);
  const DWORD size = ::GetModuleFileNameW(nullptr, path.data(),
                                          static_cast<DWORD>(path.size()));
  const std::string program =
      platform::ToUtf8(std::wstring_view(path.data(), size));
  return program.substr(0, program.rfind('\\'));
}

Program Program::Start(const std::string& path,
                       const std::vector<std::string>& args,
                       const std::map<std::string, std::string>& env) {
  const std::string file = absl::StrCat(path, ".exe");
  std::wstring line = CommandLineOf(file, args);
  std::wstring environment = EnvironmentWith(env);
  // Bytes, in one direction; a pipe of CreatePipe() cannot be waited for.
  static int number = 0;
  const std::wstring name = L"\\\\.\\pipe\\vmmshare-output-" +
                            std::to_wstring(::GetCurrentProcessId()) + L"-" +
                            std::to_wstring(number++);
  OsHandle read =
      Own(::CreateNamedPipeW(name.c_str(),
                             PIPE_ACCESS_INBOUND | FILE_FLAG_OVERLAPPED |
                                 FILE_FLAG_FIRST_PIPE_INSTANCE,
                             PIPE_TYPE_BYTE | PIPE_REJECT_REMOTE_CLIENTS, 1,
                             65536, 65536, 0, nullptr));
  SECURITY_ATTRIBUTES inherited = {sizeof(inherited), nullptr, TRUE};
  const OsHandle write = Own(::CreateFileW(
      name.c_str(), GENERIC_WRITE, 0, &inherited, OPEN_EXISTING, 0, nullptr));
  platform::Check(read.has_value() && write.has_value(),
                  "no pipe for a program's output");
  HANDLE input = nullptr;
  HANDLE write_input = nullptr;
  platform::Check(::CreatePipe(&input, &write_input, nullptr, 0) != 0 &&
                      ::SetHandleInformation(input, HANDLE_FLAG_INHERIT,
                                             HANDLE_FLAG_INHERIT) != 0,
                  "no pipe for a program's input");
  const OsHandle read_input = Own(input);
  OsHandle keep_input = Own(write_input);
  STARTUPINFOW startup = {};
  startup.cb = sizeof(startup);
  startup.dwFlags = STARTF_USESTDHANDLES;
  startup.hStdInput = input;
  startup.hStdOutput = Raw(write);
  startup.hStdError = Raw(write);
  PROCESS_INFORMATION started = {};
  if (::CreateProcessW(nullptr, line.data(), nullptr, nullptr,
                       /*inherit=*/TRUE, CREATE_UNICODE_ENVIRONMENT,
                       environment.data(), nullptr, &startup, &started) == 0) {
    const auto error = static_cast<int>(::GetLastError());
    platform::Die(absl::StrCat(
        platform::OsError(error, absl::StrCat("CreateProcessW(", file, ")"))
            .message(),
        "; build the examples first"));
  }
  ::CloseHandle(started.hThread);
  Processes()[started.dwProcessId] = Own(started.hProcess);
  return Program(started.dwProcessId, std::move(read), std::move(keep_input));
}

// Under wine the start alone may take most of a minute, beside others.
absl::Duration Program::Patience() { return absl::Seconds(200); }

Program::Program(Program&& other) noexcept
    : pid_(std::exchange(other.pid_, 0)),
      pipe_(std::move(other.pipe_)),
      input_(std::move(other.input_)),
      output_(std::move(other.output_)),
      ended_(other.ended_) {}

Program::~Program() {
  if (pid_ == 0) return;
  Kill();
  Reap();
}

void Program::Kill() { ::TerminateProcess(Raw(Processes().at(pid_)), 137); }

bool Program::ReadMore(absl::Time deadline) {
  absl::StatusOr<OsHandle> event = platform::MakeEvent();
  platform::Check(event.ok(), "no event");
  std::vector<std::uint8_t> piece(4096);
  absl::StatusOr<std::size_t> size = platform::ReadMessage(
      pipe_, *event, absl::MakeSpan(piece), deadline, {}, "output");
  if (!size.ok()) {
    ended_ = !absl::IsDeadlineExceeded(size.status());
    return false;
  }
  // The C runtime writes lines as Windows has them.
  output_ += absl::StrReplaceAll(
      absl::string_view(reinterpret_cast<const char*>(piece.data()), *size),
      {{"\r", ""}});
  return true;
}

bool Program::WaitForText(absl::string_view text, absl::Time deadline) {
  while (!absl::StrContains(output_, text)) {
    if (!ReadMore(deadline)) return false;
  }
  return true;
}

bool Program::WaitForEnd(absl::Time deadline) {
  while (ReadMore(deadline)) {
  }
  return ended_;
}

int Program::Wait(absl::Time deadline) {
  if (!WaitForEnd(deadline)) {
    ADD_FAILURE() << "the program did not end in time; it printed:\n"
                  << output_;
    Kill();
  }
  return Reap();
}

int Program::Reap() {
  const auto found = Processes().find(std::exchange(pid_, 0));
  ::WaitForSingleObject(Raw(found->second), INFINITE);
  DWORD status = 0;
  ::GetExitCodeProcess(Raw(found->second), &status);
  Processes().erase(found);
  return static_cast<int>(status);
}

}  // namespace vmm::testing
