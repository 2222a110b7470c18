// What owners of leases say of them: endpoints and pools alike.
#ifndef VMMSHARE_VMM_SHARE_INTERNAL_LEASE_TEXT_H_
#define VMMSHARE_VMM_SHARE_INTERNAL_LEASE_TEXT_H_

#include <string>

#include "absl/types/span.h"
#include "platform/ipc/peer_watch.h"
#include "vmm/share/lease.h"

namespace vmm::lease_internal {

// Sets the state of a lease, by its return_by and by what is known of its holder:
// `hung_up`, its connection has ended; `end`, what `watch` saw last.
void SetState(Lease& lease, bool hung_up, platform::PeerEnd end,
              const platform::PeerWatch& watch);

// What a wait that ends at its deadline says: how many, and the first three.
std::string DescribeAll(absl::Span<const std::string> leases);

}  // namespace vmm::lease_internal

#endif  // VMMSHARE_VMM_SHARE_INTERNAL_LEASE_TEXT_H_
