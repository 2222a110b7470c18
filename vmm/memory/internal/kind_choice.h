// Which kinds of a policy the memory of a device is made with; internal to
// vmm/memory.
#ifndef VMMSHARE_VMM_MEMORY_INTERNAL_KIND_CHOICE_H_
#define VMMSHARE_VMM_MEMORY_INTERNAL_KIND_CHOICE_H_

#include <vector>

#include "absl/status/statusor.h"
#include "vmm/memory/device.h"
#include "vmm/memory/handle_kind.h"

namespace vmm {

struct KindChoice {
  // Empty if the policy names none. kLegacyIpc is alone in it.
  HandleKindSet kinds;
  std::vector<PassedOver> passed_over;  // The others of the policy, and why.
};

// Tries each kind of `policy` on `device`. kLegacyIpc is tried last, and only
// where no other kind works: the memory is then cuMemAlloc()'s. When none works,
// the first kind's reason; all reasons are in the message. RESOURCE_EXHAUSTED or
// UNAVAILABLE when none of cuMemCreate()'s works now, and one may at another time.
absl::StatusOr<KindChoice> ChooseKinds(const Device& device,
                                       const SharePolicy& policy);

}  // namespace vmm

#endif  // VMMSHARE_VMM_MEMORY_INTERNAL_KIND_CHOICE_H_
