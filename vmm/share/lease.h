// Lease: what the owner of memory knows of one import of it.
//
// Every import that came over an endpoint is a lease on its connection: the
// owner can list who holds what since when, ask for it back, and wait until it
// is returned. What a process holds when it dies is returned once its end is
// proven: until a child that it forked has ended, or where the system does not
// let one look at it, it is quarantined (docs/lifetime.md).
//
// A lease cannot be taken away: the driver has no call that unmaps memory from
// another process. Ask, wait with a deadline, and then decide: go on without
// the memory, or end the process that holds it.
#ifndef VMMSHARE_VMM_SHARE_LEASE_H_
#define VMMSHARE_VMM_SHARE_LEASE_H_

#include <cuda.h>

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "platform/ipc/channel.h"
#include "vmm/memory/shareable.h"

namespace vmm {

enum class LeaseState {
  kHeld,
  kRecalled,     // Asked back; return_by says until when.
  kQuarantined,  // The holder has gone, and its end is not proven.
};

struct Lease {
  platform::PeerCredentials holder;  // Its process id is for messages only.
  std::uint64_t size = 0;            // Bytes, as the owner asked for them.
  absl::Time since;
  LeaseState state = LeaseState::kHeld;
  std::optional<absl::Time> return_by = std::nullopt;
  // Of one that is quarantined: why its end is not proven, after "which" or
  // "whose".
  std::string reason = {};

  // "65536 bytes, process 4711 of user 1000, for 2.5s, asked back within 4.9s".
  std::string Describe() const;
};

// Of memory that an Endpoint published.
struct MemoryLease {
  MemoryId memory;
  Lease lease;
};

// Of a block of a Pool. `since` is the holder's word, within 16 ms: it lies
// between the start of its subscription and now, whatever a hostile one says.
struct BlockLease {
  CUdeviceptr block = 0;  // The owner's address.
  bool freed = false;     // By the owner: waits for the holders alone.
  Lease lease;
};

// What an importer knows of its own lease.
struct LeaseStatus {
  // UNAVAILABLE once the owner has ended, or serves nobody any more; DATA_LOSS once
  // it broke the protocol. What is imported stays valid. FAILED_PRECONDITION when
  // the memory did not come from an endpoint: then it is no lease, and the owner
  // cannot see it; and in a forked child, whose parent has it.
  absl::Status connection;
  // Set when the owner wants the memory back: let go of it by then. If you do not,
  // the owner sees it, and nothing else happens.
  std::optional<absl::Time> return_by;
};

}  // namespace vmm

#endif  // VMMSHARE_VMM_SHARE_LEASE_H_
