#include <sys/eventfd.h>

#include <cerrno>

#include "platform/channel.h"
#include "platform/check.h"
#include "platform/os_error.h"

namespace vmm::platform {

absl::StatusOr<CancelEvent> CancelEvent::Create() {
  const int fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (fd < 0) return OsError(errno, "eventfd(0)");
  return CancelEvent(OsHandle::Adopt(fd));
}

void CancelEvent::Notify() const {
  // EAGAIN says that the counter is full: it was notified before.
  while (::eventfd_write(static_cast<int>(handle_.get()), 1) != 0 &&
         errno != EAGAIN) {
    Check(errno == EINTR, "this CancelEvent was moved from");
  }
}

}  // namespace vmm::platform
