// What is kept under a name, and what of it can be checked without a driver; internal
// to vmm/.
#ifndef VMMSHARE_VMM_KEEPER_INTERNAL_CONTENT_H_
#define VMMSHARE_VMM_KEEPER_INTERNAL_CONTENT_H_

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "vmm/memory/internal/exporter.h"
#include "vmm/share/ticket.h"

namespace vmm::keeper {

// What is kept. Never changes; whoever sends it holds it.
struct Content {
  Ticket ticket;
  std::vector<ExportedHandle> handles;
};

// The checks of an import that need no driver.
//
// OK when `ticket` is of this machine and of a kind that a keeper keeps here.
absl::Status CheckTicketIsOfHere(const Ticket& ticket);
// OK when `handle` can be chunk `index` of what `ticket` describes. REQUIRES:
// CheckTicketIsOfHere().
absl::Status CheckHandle(const Ticket& ticket, std::size_t index,
                         const ExportedHandle& handle);

}  // namespace vmm::keeper

#endif  // VMMSHARE_VMM_KEEPER_INTERNAL_CONTENT_H_
