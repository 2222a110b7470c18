#include "platform/cuda/handle_attributes.h"

namespace vmm::platform {

absl::StatusOr<void*> NativeHandleAttributes(const std::vector<UserId>&) {
  return nullptr;
}

absl::StatusOr<void*> NativePoolAttributes() { return nullptr; }

}  // namespace vmm::platform
