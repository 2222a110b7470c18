#include <gtest/gtest.h>
#include <windows.h>
// After the line above.
#include <winternl.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "platform/check.h"
#include "platform/os_error.h"
#include "platform/process.h"
#include "platform/utf16_win.h"
#include "tests/support/child.h"

// Exported by ntdll.dll and declared in none of the SDK's headers.
extern "C" NTSTATUS NTAPI NtSuspendProcess(HANDLE process);
extern "C" NTSTATUS NTAPI NtResumeProcess(HANDLE process);

namespace vmm::testing {
namespace {

constexpr absl::string_view kRoleFlag = "--vmmshare_child=";
// What a child killed by Kill() answers, as if by a signal: 128 + SIGKILL.
constexpr UINT kKilled = 137;
// What abort() makes of a process here, and what Wait() answers for it:
// 128 + SIGABRT.
constexpr DWORD kAbortExit = 3;
constexpr int kAborted = 134;

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

std::wstring Wide(const std::string& text) {
  absl::StatusOr<std::wstring> wide = platform::ToUtf16(text);
  if (!wide.ok()) platform::Die(wide.status().ToString());
  return *std::move(wide);
}

// As the C runtime of the child splits a command line again.
std::wstring Quote(const std::wstring& word) {
  std::wstring quoted = L"\"";
  std::size_t backslashes = 0;
  for (const wchar_t c : word) {
    if (c == L'\\') {
      ++backslashes;
    } else {
      if (c == L'"') quoted.append(backslashes + 1, L'\\');
      backslashes = 0;
    }
    quoted += c;
  }
  quoted.append(backslashes, L'\\');
  return quoted + L"\"";
}

std::wstring Environment(const std::map<std::string, std::string>& changes) {
  std::map<std::wstring, std::wstring> merged;
  wchar_t* const block = ::GetEnvironmentStringsW();
  for (const wchar_t* entry = block; *entry != L'\0';) {
    const std::wstring text = entry;
    entry += text.size() + 1;
    // The working directories of drives are in there as "=C:=C:\...".
    const std::size_t equals = text.find(L'=', 1);
    if (equals == std::wstring::npos) continue;
    merged[text.substr(0, equals)] = text.substr(equals + 1);
  }
  ::FreeEnvironmentStringsW(block);
  for (const auto& [name, value] : changes) merged[Wide(name)] = Wide(value);
  std::wstring result;
  for (const auto& [name, value] : merged) {
    result += name + L"=" + value;
    result += L'\0';
  }
  result += L'\0';
  return result;
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
  return status == kAbortExit ? kAborted : static_cast<int>(status);
}

// The handles a child inherits: its standard ones, and no others.
class Inherited {
 public:
  explicit Inherited(STARTUPINFOEXW& startup) {
    startup.StartupInfo.dwFlags = STARTF_USESTDHANDLES;
    startup.StartupInfo.hStdInput = Add(STD_INPUT_HANDLE);
    startup.StartupInfo.hStdOutput = Add(STD_OUTPUT_HANDLE);
    startup.StartupInfo.hStdError = Add(STD_ERROR_HANDLE);
    SIZE_T size = 0;
    ::InitializeProcThreadAttributeList(nullptr, 1, 0, &size);
    buffer_.resize(size);
    startup.lpAttributeList =
        reinterpret_cast<LPPROC_THREAD_ATTRIBUTE_LIST>(buffer_.data());
    platform::Check(::InitializeProcThreadAttributeList(startup.lpAttributeList,
                                                        1, 0, &size) != 0 &&
                        ::UpdateProcThreadAttribute(
                            startup.lpAttributeList, 0,
                            PROC_THREAD_ATTRIBUTE_HANDLE_LIST, handles_.data(),
                            count_ * sizeof(HANDLE), nullptr, nullptr) != 0,
                    "cannot list a child's handles");
  }

 private:
  HANDLE Add(DWORD which) {
    const HANDLE handle = ::GetStdHandle(which);
    if (handle == nullptr || handle == INVALID_HANDLE_VALUE) return nullptr;
    ::SetHandleInformation(handle, HANDLE_FLAG_INHERIT, HANDLE_FLAG_INHERIT);
    // The list may not name one twice.
    for (std::size_t i = 0; i < count_; ++i) {
      if (handles_[i] == handle) return handle;
    }
    handles_[count_++] = handle;
    return handle;
  }

  std::array<HANDLE, 3> handles_{};
  std::size_t count_ = 0;
  std::string buffer_;
};

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
  std::wstring line = Quote(program.data());
  line += L" " + Quote(Wide(absl::StrCat(kRoleFlag, name)));
  for (const std::string& arg : args) line += L" " + Quote(Wide(arg));
  std::wstring environment = Environment(env);
  std::fflush(nullptr);

  STARTUPINFOEXW startup = {};
  startup.StartupInfo.cb = sizeof(startup);
  const Inherited inherited(startup);
  PROCESS_INFORMATION started = {};
  // Suspended until it is in the job, which it could otherwise outlive.
  if (::CreateProcessW(program.data(), line.data(), nullptr, nullptr,
                       /*inherit=*/TRUE,
                       CREATE_UNICODE_ENVIRONMENT | CREATE_SUSPENDED |
                           EXTENDED_STARTUPINFO_PRESENT,
                       environment.data(), nullptr, &startup.StartupInfo,
                       &started) == 0) {
    platform::Die(
        platform::OsError(static_cast<int>(::GetLastError()),
                          absl::StrCat("CreateProcessW(child ", name, ")"))
            .ToString());
  }
  ::DeleteProcThreadAttributeList(startup.lpAttributeList);
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

int RunAsChild(int argc, char** argv) {
  absl::string_view role = argc > 1 ? argv[1] : "";
  if (!absl::ConsumePrefix(&role, kRoleFlag)) return -1;
  const auto found = Registry().find(std::string(role));
  platform::Check(found != Registry().end(),
                  absl::StrCat("no child ", role, " is registered"));
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
