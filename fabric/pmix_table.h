// The entry points of libpmix, and its results as codes of absl.
//
// Internal to fabric/pmix.cc.
#ifndef VMMSHARE_FABRIC_PMIX_TABLE_H_
#define VMMSHARE_FABRIC_PMIX_TABLE_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fabric/pmix_abi.h"
#include "platform/os/library.h"

namespace vmm::fabric::pmix {

// FAILED_PRECONDITION, which names them, when `library` lacks some.
absl::StatusOr<Table> ReadTable(const platform::Library& library);

absl::StatusCode CodeOf(Status status);

}  // namespace vmm::fabric::pmix

#endif  // VMMSHARE_FABRIC_PMIX_TABLE_H_
