// What owners of leases say of them: endpoints and pools alike.
#ifndef VMMSHARE_VMM_SHARE_INTERNAL_LEASE_TEXT_H_
#define VMMSHARE_VMM_SHARE_INTERNAL_LEASE_TEXT_H_

#include <string>

#include "absl/types/span.h"
#include "platform/ipc/peer_watch.h"
#include "vmm/share/lease.h"

namespace vmm::lease_internal {

// Marks the lease of a holder of which that is known, if it is quarantined by
// that: `hung_up`, its connection has ended.
void Quarantine(Lease& lease, bool hung_up, platform::PeerEnd end,
                const platform::PeerWatch& watch);

// What a wait that ends at its deadline says: how many, and the first three.
std::string DescribeAll(absl::Span<const std::string> leases);

}  // namespace vmm::lease_internal

#endif  // VMMSHARE_VMM_SHARE_INTERNAL_LEASE_TEXT_H_
