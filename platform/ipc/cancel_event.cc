#include "platform/ipc/channel.h"

namespace vmm::platform {

absl::StatusOr<CancelEvent> CancelEvent::CreateUnder(
    const CancelEvent& parent) {
  absl::StatusOr<CancelEvent> made = Create();
  if (made.ok()) made->parent_ = &parent.handle();
  return made;
}

}  // namespace vmm::platform
