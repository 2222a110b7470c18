#include "platform/handle_attributes.h"

namespace vmm::platform {

absl::StatusOr<void*> NativeHandleAttributes() { return nullptr; }

}  // namespace vmm::platform
