// LeaseConnection: the importer's end of the connection that its leases are
// on; internal to vmm/.
#ifndef VMMSHARE_VMM_LEASE_CONNECTION_H_
#define VMMSHARE_VMM_LEASE_CONNECTION_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "platform/channel.h"
#include "vmm/lease.h"
#include "vmm/memory_id.h"

namespace vmm {

// Thread-safe. In a forked child it does nothing: the leases are the parent's.
class LeaseConnection {
 public:
  // The owner, at the other end of `channel`, has sent `ids`, one an import.
  LeaseConnection(platform::Channel channel, std::vector<MemoryId> ids);
  LeaseConnection(const LeaseConnection&) = delete;
  LeaseConnection& operator=(const LeaseConnection&) = delete;

  // Tells the owner; hangs up with the last one.
  void Return(const MemoryId& id);

  // Reads what the owner has sent, without a wait.
  LeaseStatus StatusOf(const MemoryId& id);

 private:
  absl::Status ReadNews();

  const std::uint64_t forks_;  // When it was made.
  std::mutex mutex_;
  platform::Channel channel_;
  std::vector<MemoryId> held_;
  std::map<MemoryId, absl::Time> return_by_;
  absl::Status connection_;
};

// One import's lease, which is returned when this goes.
class HeldLease {
 public:
  HeldLease(std::shared_ptr<LeaseConnection> connection, const MemoryId& id)
      : connection_(std::move(connection)), id_(id) {}
  ~HeldLease() { connection_->Return(id_); }
  HeldLease(const HeldLease&) = delete;
  HeldLease& operator=(const HeldLease&) = delete;

  LeaseStatus status() const { return connection_->StatusOf(id_); }

 private:
  const std::shared_ptr<LeaseConnection> connection_;
  const MemoryId id_;
};

}  // namespace vmm

#endif  // VMMSHARE_VMM_LEASE_CONNECTION_H_
