#include <crtdbg.h>
#include <gtest/gtest.h>
#include <windows.h>
// After the line above.
#include <winternl.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "platform/base/check.h"
#include "platform/os/os_error.h"
#include "platform/os/process.h"
#include "platform/os/utf16_win.h"
#include "tests/support/child.h"
#include "tests/support/command_line_win.h"
#include "tests/support/peer_version.h"

// Exported by ntdll.dll and declared in none of the SDK's headers.
extern "C" NTSTATUS NTAPI NtSuspendProcess(HANDLE process);
extern "C" NTSTATUS NTAPI NtResumeProcess(HANDLE process);

namespace vmm::testing {
namespace {

constexpr absl::string_view kRoleFlag = "--vmmshare_child=";
// What abort() and a fault make of a process here, and what Wait() answers
// for them: 128 + SIGABRT and 128 + SIGSEGV.
constexpr DWORD kAbortExit = 3;
constexpr DWORD kFastFailure = 0xC0000409;  // That of MSVC's library.
constexpr int kAborted = 134;
constexpr DWORD kAccessViolation = 0xC0000005;
constexpr int kFaulted = 139;

std::map<std::string, ChildMain>& Registry() {
  static auto* registry = new std::map<std::string, ChildMain>;
  return *registry;
}

// The processes of all Child objects, which hold ids only.
struct Processes {
  std::mutex mutex;
  std::map<std::int64_t, platform::OsHandle> by_id;
};

Processes& AllProcesses() {
  static auto* processes = new Processes;
  return *processes;
}

HANDLE HandleOf(std::int64_t pid) {
  Processes& all = AllProcesses();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto found = all.by_id.find(pid);
  platform::Check(found != all.by_id.end(), "no such child");
  return reinterpret_cast<HANDLE>(found->second.get());
}

// The children of a test that is killed end with it.
HANDLE Job() {
  static const HANDLE job = [] {
    const HANDLE made = ::CreateJobObjectW(nullptr, nullptr);
    platform::Check(made != nullptr, "CreateJobObjectW() failed");
    JOBOBJECT_EXTENDED_LIMIT_INFORMATION limits = {};
    limits.BasicLimitInformation.LimitFlags =
        JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE;
    platform::Check(
        ::SetInformationJobObject(made, JobObjectExtendedLimitInformation,
                                  &limits, sizeof(limits)) != 0,
        "SetInformationJobObject() failed");
    return made;
  }();
  return job;
}

int Reap(std::int64_t pid) {
  const HANDLE process = HandleOf(pid);
  ::WaitForSingleObject(process, INFINITE);
  DWORD status = 0;
  ::GetExitCodeProcess(process, &status);
  Processes& all = AllProcesses();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.by_id.erase(pid);
  return status == kAbortExit || status == kFastFailure ? kAborted
         : status == kAccessViolation                   ? kFaulted
                                      : static_cast<int>(status);
}

}  // namespace

bool RegisterChild(const std::string& name, ChildMain main) {
  platform::Check(Registry().emplace(name, main).second,
                  absl::StrCat("child ", name, " is registered twice"));
  return true;
}

Child Child::Start(const std::string& name,
                   const std::vector<std::string>& args,
                   const std::map<std::string, std::string>& env) {
  platform::Check(Registry().contains(name),
                  absl::StrCat("no child ", name, " is registered"));
  std::vector<wchar_t> program(32768);
  ::GetModuleFileNameW(nullptr, program.data(),
                       static_cast<DWORD>(program.size()));
  std::vector<std::string> words = {absl::StrCat(kRoleFlag, name)};
  words.insert(words.end(), args.begin(), args.end());
  std::wstring line = CommandLineOf(platform::ToUtf8(program.data()), words);
  std::wstring environment = EnvironmentWith(WithPeerVersion(env));
  std::fflush(nullptr);

  // Inherits what was made to be inherited: our standard handles, and what a
  // test means for it.
  STARTUPINFOW startup = {};
  startup.cb = sizeof(startup);
  PROCESS_INFORMATION started = {};
  // Suspended until it is in the job, which it could otherwise outlive.
  if (::CreateProcessW(program.data(), line.data(), nullptr, nullptr,
                       /*inherit=*/TRUE,
                       CREATE_UNICODE_ENVIRONMENT | CREATE_SUSPENDED,
                       environment.data(), nullptr, &startup, &started) == 0) {
    const auto error = static_cast<int>(::GetLastError());
    platform::Die(platform::OsError(
                      error, absl::StrCat("CreateProcessW(child ", name, ")"))
                      .ToString());
  }
  platform::Check(::AssignProcessToJobObject(Job(), started.hProcess) != 0,
                  "AssignProcessToJobObject() failed");
  ::ResumeThread(started.hThread);
  ::CloseHandle(started.hThread);
  const std::int64_t pid = started.dwProcessId;
  Processes& all = AllProcesses();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.by_id[pid] = platform::OsHandle::Adopt(
      reinterpret_cast<std::intptr_t>(started.hProcess));
  return Child(pid);
}

Child::Child(Child&& other) noexcept : pid_(std::exchange(other.pid_, -1)) {}

Child::~Child() {
  if (pid_ <= 0) return;
  Kill();
  Reap(pid_);
}

void Child::Kill() { ::TerminateProcess(HandleOf(pid_), kKilled); }
void Child::Continue() { ::NtResumeProcess(HandleOf(pid_)); }
// It stands still when the call returns.
void Child::Stop() { ::NtSuspendProcess(HandleOf(pid_)); }

bool Child::IsStopped() const { return false; }

int Child::Wait(absl::Time deadline) {
  platform::Check(pid_ > 0, "this child was waited for already");
  const absl::StatusOr<platform::Process> process =
      platform::Process::Open(pid_);
  if (!process.ok()) platform::Die(process.status().ToString());
  if (absl::Status status = process->WaitForExit(deadline); !status.ok()) {
    ADD_FAILURE() << "child " << pid_ << ": " << status;
    Kill();
  }
  return Reap(std::exchange(pid_, -1));
}

bool EndedByAFault(int status) {
  return static_cast<DWORD>(status) == kAccessViolation;
}

void KillThisProcess() {
  for (;;) ::TerminateProcess(::GetCurrentProcess(), Child::kKilled);
}

int RunAsChild(int argc, char** argv) {
  absl::string_view role = argc > 1 ? argv[1] : "";
  if (!absl::ConsumePrefix(&role, kRoleFlag)) return -1;
  const auto found = Registry().find(std::string(role));
  platform::Check(found != Registry().end(),
                  absl::StrCat("no child ", role, " is registered"));
  // A debug build of MSVC's library would show abort() in a window, and wait.
  static_cast<void>(_CrtSetReportMode(_CRT_ERROR, _CRTDBG_MODE_DEBUG));
  const std::vector<std::string> args(argv + 2, argv + argc);
  int framework_argc = 1;
  ::testing::InitGoogleTest(&framework_argc, argv);
  const int status = found->second(args);
  platform::Check(status >= 0, "a child's main must not answer less than 0");
  // EXPECT_ and ASSERT_ in a child count as well.
  const bool failed =
      ::testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed();
  return status == 0 && failed ? 1 : status;
}

}  // namespace vmm::testing
