#include <windows.h>

#include "absl/strings/str_cat.h"
#include "platform/base/check.h"
#include "platform/os/os_error.h"
#include "platform/os/os_handle.h"

namespace vmm::platform {

const bool kNativeHandleIsPosixFd = false;

// Pseudo handles (the current process is -1, which is INVALID_HANDLE_VALUE
// too, the current thread -2, tokens to -6) are negative; they mean "me" to
// whoever uses them and are never to be closed. A handle of the kernel's is
// positive, with 32 significant bits.
bool OsHandleTraits::Holds(Value value) { return value > 0; }

void OsHandleTraits::Close(Value value) {
  if (::CloseHandle(reinterpret_cast<HANDLE>(value)) == 0 &&
      ::GetLastError() == ERROR_INVALID_HANDLE) {
    Die(absl::StrCat("handle ", value,
                     " was closed by somebody who does not own it"));
  }
}

absl::StatusOr<OsHandle> Duplicate(const OsHandle& handle) {
  if (!handle.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "handle ", handle.get(), " is not open, so it cannot be duplicated"));
  }
  HANDLE copy = nullptr;
  if (::DuplicateHandle(::GetCurrentProcess(),
                        reinterpret_cast<HANDLE>(handle.get()),
                        ::GetCurrentProcess(), &copy, 0, /*inherit=*/FALSE,
                        DUPLICATE_SAME_ACCESS) == 0) {
    const auto error = static_cast<int>(::GetLastError());
    return OsError(error, absl::StrCat("DuplicateHandle(", handle.get(), ")"));
  }
  return OsHandle::Adopt(reinterpret_cast<std::intptr_t>(copy));
}

}  // namespace vmm::platform
