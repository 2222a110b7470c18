#include <poll.h>
#include <sys/eventfd.h>

#include <cerrno>
#include <utility>

#include "platform/base/check.h"
#include "platform/ipc/channel.h"
#include "platform/os/descriptor_posix.h"
#include "platform/os/os_error.h"
#include "platform/os/wait_posix.h"

namespace vmm::platform {

absl::StatusOr<CancelEvent> CancelEvent::Create() {
  OsHandle event = AdoptDescriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event.has_value()) return LastError().Of("eventfd(0)");
  return CancelEvent(std::move(event));
}

void CancelEvent::Notify() const {
  // EAGAIN says that the counter is full: it was notified before.
  while (::eventfd_write(Fd(handle_), 1) != 0 && errno != EAGAIN) {
    Check(errno == EINTR, "this CancelEvent was moved from");
  }
}

void CancelEvent::Reset() const {
  eventfd_t count = 0;
  while (::eventfd_read(Fd(handle_), &count) != 0) {
    if (errno == EINTR) continue;
    Check(errno != EBADF, "this CancelEvent was moved from");
    // EAGAIN says that it was not notified. After another error it stays so,
    // and whoever it wakes looks once more than needed.
    return;
  }
}

bool CancelEvent::IsNotified() const {
  return WaitForEvents(handle_, POLLIN, absl::InfinitePast(), {}, "event").ok();
}

}  // namespace vmm::platform
