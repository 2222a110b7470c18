// A context of a device for the length of a call; internal to vmm/.
#ifndef VMMSHARE_VMM_MEMORY_INTERNAL_HELD_CONTEXT_H_
#define VMMSHARE_VMM_MEMORY_INTERNAL_HELD_CONTEXT_H_

#include <optional>

#include "absl/status/statusor.h"
#include "vmm/memory/device.h"

namespace vmm {

struct ContextHeld {
  std::optional<PrimaryContext> primary;
  std::optional<CurrentContext> current;  // Ends first.
};

// One of `device` is current on this thread until what is returned goes: the primary
// one, which is made if nobody has; or nothing is held, for one of it is current and
// alive.
absl::StatusOr<ContextHeld> HoldContextOf(const Device& device);

}  // namespace vmm

#endif  // VMMSHARE_VMM_MEMORY_INTERNAL_HELD_CONTEXT_H_
