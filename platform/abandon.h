// Leaves an object alone that must not be destroyed any more: Abandon().
#ifndef VMMSHARE_PLATFORM_ABANDON_H_
#define VMMSHARE_PLATFORM_ABANDON_H_

#include <memory>

namespace vmm::platform {

// Keeps `object` as it is until the process ends, and reachable, so that it is
// not taken for a leak. It is for a forked child: the object's threads are not
// there, and what they were changing may be half changed for ever. Any thread.
void Abandon(std::shared_ptr<const void> object);

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_ABANDON_H_
