// What a keeper says of who is in the way; internal to vmm/. Messages go to
// peers, so they name no memory.
#ifndef VMMSHARE_VMM_KEEPER_INTERNAL_REFUSALS_H_
#define VMMSHARE_VMM_KEEPER_INTERNAL_REFUSALS_H_

#include <string>

#include "absl/status/status.h"
#include "vmm/keeper/internal/registry.h"

namespace vmm::keeper {

// "process 4711 of user 1000".
std::string Describe(const Client& client);

// NOT_FOUND.
absl::Status NotKept();

// ALREADY_EXISTS: `by` put it, or is creating it.
absl::Status Taken(const Client& by, bool kept);

}  // namespace vmm::keeper

#endif  // VMMSHARE_VMM_KEEPER_INTERNAL_REFUSALS_H_
