#include "platform/os/wait_win.h"

#include <windows.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "platform/base/check.h"
#include "platform/os/os_error.h"

namespace vmm::platform {
namespace {

// INFINITE is the largest DWORD; a wait of this many milliseconds is begun
// anew when it ends too early.
constexpr std::int64_t kLongestWait = std::int64_t{24} * 60 * 60 * 1000;

}  // namespace

absl::StatusOr<std::size_t> WaitForHandles(
    absl::Span<const std::intptr_t> handles, Deadline deadline,
    const Cancels& cancels, absl::string_view what) {
  Check(handles.size() <= kMostWaited, "WaitForHandles: too many handles");
  HANDLE watched[MAXIMUM_WAIT_OBJECTS];
  DWORD count = 0;
  // First, for the lowest of several signalled ones is answered.
  for (const OsHandle* const cancel : {cancels.own, cancels.parent}) {
    if (cancel == nullptr) continue;
    watched[count++] = reinterpret_cast<HANDLE>(cancel->get());
  }
  const DWORD first = count;
  for (const std::intptr_t handle : handles) {
    watched[count++] = reinterpret_cast<HANDLE>(handle);
  }
  for (;;) {
    const absl::Duration left = deadline.Left();
    // Rounded up: rounded down it would look again and again until then.
    const std::int64_t milliseconds =
        left >= absl::Milliseconds(kLongestWait)
            ? kLongestWait
            : absl::ToInt64Milliseconds(
                  absl::Ceil(left, absl::Milliseconds(1)));
    const DWORD ended = ::WaitForMultipleObjects(
        count, watched, /*all=*/FALSE, static_cast<DWORD>(milliseconds));
    if (ended == WAIT_FAILED) {
      const auto error = static_cast<int>(::GetLastError());
      return OsError(error, absl::StrCat("WaitForMultipleObjects(", what, ")"));
    }
    if (ended < WAIT_OBJECT_0 + count) {
      if (ended >= WAIT_OBJECT_0 + first) {
        return static_cast<std::size_t>(ended - WAIT_OBJECT_0 - first);
      }
      return absl::CancelledError(
          absl::StrCat("waiting for ", what, " was cancelled"));
    }
    if (deadline.Passed()) {
      return absl::DeadlineExceededError(
          absl::StrCat("no ", what, " before the deadline"));
    }
  }
}

}  // namespace vmm::platform
