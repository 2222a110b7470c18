#include "platform/termination.h"

// First: the next ones need it.
#include <windows.h>

#include <algorithm>

#include "absl/time/clock.h"
#include "platform/check.h"

namespace vmm::platform {
namespace {

// Never closed: the system calls the handler until the process ends.
HANDLE Asked() {
  static const HANDLE event = ::CreateEventW(nullptr, TRUE, FALSE, nullptr);
  return event;
}

BOOL WINAPI Handle(DWORD) {
  ::SetEvent(Asked());
  return TRUE;
}

}  // namespace

void HoldTermination() {
  Check(Asked() != nullptr, "there is no event to wait for the end with");
  Check(::SetConsoleCtrlHandler(&Handle, TRUE) != 0,
        "the console's requests to end cannot be handled");
}

absl::Status WaitForTermination(absl::Time deadline) {
  for (;;) {
    const absl::Duration left = deadline - absl::Now();
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
