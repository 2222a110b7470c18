// CancelsOf: what a CancelEvent ends, for waits; internal to platform/.
#ifndef VMMSHARE_PLATFORM_IPC_CANCELS_OF_H_
#define VMMSHARE_PLATFORM_IPC_CANCELS_OF_H_

#include "platform/ipc/channel.h"
#include "platform/os/cancels.h"

namespace vmm::platform {

// `event` may be null.
inline Cancels CancelsOf(const CancelEvent* event) {
  if (event == nullptr) return {};
  return {&event->handle(), event->parent()};
}

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_IPC_CANCELS_OF_H_
