#include <windows.h>

#include <limits>

#include "absl/strings/str_cat.h"
#include "platform/base/check.h"
#include "platform/os/os_error.h"
#include "platform/os/process.h"
#include "platform/os/security_win.h"
#include "platform/os/wait_win.h"

namespace vmm::platform {

UserId CurrentUser() {
  // Of the process and not of the thread, which may impersonate a client.
  static const UserId& user = *new UserId([] {
    absl::StatusOr<UserId> found =
        UserOfProcess(reinterpret_cast<std::intptr_t>(::GetCurrentProcess()));
    if (!found.ok()) Die(found.status().ToString());
    return *std::move(found);
  }());
  return user;
}

std::int64_t CurrentProcessId() { return ::GetCurrentProcessId(); }

bool IsForkedChild() { return false; }

std::uint64_t ForksSoFar() { return 0; }

std::uint64_t ForkEpoch() { return 0; }

absl::Status RaiseDescriptorLimit() { return absl::OkStatus(); }

const char* SystemDriverName() { return "nvcuda.dll"; }

const char* SystemNvmlName() { return "nvml.dll"; }

absl::StatusOr<Process> Process::Open(std::int64_t pid) {
  if (pid <= 0 || pid > std::numeric_limits<DWORD>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat("process id ", pid, " is none; ids start at 1"));
  }
  // Null when it fails, not INVALID_HANDLE_VALUE, which here means "me".
  const HANDLE process =
      ::OpenProcess(SYNCHRONIZE | PROCESS_QUERY_LIMITED_INFORMATION,
                    /*inherit=*/FALSE, static_cast<DWORD>(pid));
  if (process == nullptr) {
    const DWORD error = ::GetLastError();
    const std::string call = absl::StrCat("OpenProcess(", pid, ")");
    absl::Status status = OsError(static_cast<int>(error), call);
    // What Windows answers to an id that is none.
    return error == ERROR_INVALID_PARAMETER
               ? absl::NotFoundError(absl::StrCat(status.message(),
                                                  ". No process has this id."))
               : status;
  }
  return FromHandle(OsHandle::Adopt(reinterpret_cast<std::intptr_t>(process)),
                    pid);
}

std::uint64_t Process::Identity() const { return 0; }

absl::Status Process::WaitForExit(Deadline deadline) const {
  Check(handle_ != nullptr, "this Process was moved from");
  const std::intptr_t handle = handle_->get();
  return WaitForHandles(absl::MakeConstSpan(&handle, 1), deadline, {},
                        absl::StrCat("exit of process ", pid_))
      .status();
}

}  // namespace vmm::platform
