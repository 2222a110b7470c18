#include "platform/handle_attributes.h"

namespace vmm::platform {

absl::StatusOr<void*> NativeHandleAttributes(const std::vector<UserId>&) {
  return nullptr;
}

}  // namespace vmm::platform
