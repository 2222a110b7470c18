#include <windows.h>

#include "platform/base/check.h"
#include "platform/ipc/channel.h"
#include "platform/os/os_error.h"

namespace vmm::platform {

absl::StatusOr<CancelEvent> CancelEvent::Create() {
  const HANDLE event =
      ::CreateEventW(nullptr, /*manual reset=*/TRUE, FALSE, nullptr);
  if (event == nullptr) {
    return OsError(static_cast<int>(::GetLastError()), "CreateEventW()");
  }
  return CancelEvent(OsHandle::Adopt(reinterpret_cast<std::intptr_t>(event)));
}

void CancelEvent::Notify() const {
  Check(::SetEvent(reinterpret_cast<HANDLE>(handle_.get())) != 0,
        "this CancelEvent was moved from");
}

void CancelEvent::Reset() const {
  Check(::ResetEvent(reinterpret_cast<HANDLE>(handle_.get())) != 0,
        "this CancelEvent was moved from");
}

bool CancelEvent::IsNotified() const {
  return ::WaitForSingleObject(reinterpret_cast<HANDLE>(handle_.get()), 0) ==
         WAIT_OBJECT_0;
}

}  // namespace vmm::platform
