// The text that ImportedPool::Subscribe() is given: "vmmshare-pool:2:" and so
// on, as ticket.h; internal to vmm/.
#ifndef VMMSHARE_VMM_POOL_INTERNAL_POOL_STRING_H_
#define VMMSHARE_VMM_POOL_INTERNAL_POOL_STRING_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "vmm/pool/pool_ticket.h"
#include "vmm/share/servable.h"

namespace vmm {

struct AddressedPool {
  DomainId domain;  // Whose tickets it is for.
  ShareInvitation invitation;
  friend bool operator==(const AddressedPool&, const AddressedPool&) = default;
};

// As FormatTicketString() and ParseTicketString().
std::string FormatPoolString(const AddressedPool& pool);
absl::StatusOr<AddressedPool> ParsePoolString(absl::string_view text);

}  // namespace vmm

#endif  // VMMSHARE_VMM_POOL_INTERNAL_POOL_STRING_H_
