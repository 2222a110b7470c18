#include <windows.h>

#include <utility>

#include "platform/base/check.h"
#include "platform/base/status_macros.h"
#include "platform/ipc/channel.h"
#include "platform/ipc/pipe_win.h"

namespace vmm::platform {

absl::StatusOr<CancelEvent> CancelEvent::Create() {
  ASSIGN_OR_RETURN(OsHandle event, MakeEvent());
  return CancelEvent(std::move(event));
}

void CancelEvent::Notify() const {
  Check(::SetEvent(Raw(handle_)) != 0, "this CancelEvent was moved from");
}

void CancelEvent::Reset() const {
  Check(::ResetEvent(Raw(handle_)) != 0, "this CancelEvent was moved from");
}

bool CancelEvent::IsNotified() const {
  return ::WaitForSingleObject(Raw(handle_), 0) == WAIT_OBJECT_0;
}

}  // namespace vmm::platform
