#include "platform/os/termination.h"

// First: the next ones need it.
#include <windows.h>

#include <algorithm>

#include "platform/base/check.h"
#include "platform/os/termination_win.h"

namespace vmm::platform {
namespace {

// Never closed: the system calls the handler until the process ends.
HANDLE Asked() {
  static const HANDLE event = ::CreateEventW(nullptr, TRUE, FALSE, nullptr);
  return event;
}

BOOL WINAPI Handle(DWORD event) { return OnConsoleEvent(event) ? TRUE : FALSE; }

}  // namespace

bool OnConsoleEvent(std::uint32_t event) {
  // Only services are told, of whatever user. Nobody asks them to end.
  if (event == CTRL_LOGOFF_EVENT) return true;
  ::SetEvent(Asked());
  if (event != CTRL_C_EVENT && event != CTRL_BREAK_EVENT) ::Sleep(INFINITE);
  return true;
}

void HoldTermination() {
  Check(Asked() != nullptr, "there is no event to wait for the end with");
  Check(::SetConsoleCtrlHandler(&Handle, TRUE) != 0,
        "the console's requests to end cannot be handled");
}

void LetGoOfTermination() {
  // As often as it was added; the last call finds none.
  while (::SetConsoleCtrlHandler(&Handle, FALSE) != 0) {
  }
  if (Asked() != nullptr) ::ResetEvent(Asked());
}

absl::Status WaitForTermination(Deadline deadline) {
  for (;;) {
    const absl::Duration left = deadline.Left();
    const auto wait = static_cast<DWORD>(absl::ToInt64Milliseconds(
        std::clamp(left, absl::ZeroDuration(), absl::Hours(1))));
    if (::WaitForSingleObject(Asked(), wait) == WAIT_OBJECT_0) {
      return absl::OkStatus();
    }
    if (left <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError(
          "nobody asked this process to end before the deadline");
    }
  }
}

}  // namespace vmm::platform
