// LeaseConnection: the importer's end of the connection that its leases are
// on; internal to vmm/.
#ifndef VMMSHARE_VMM_SHARE_INTERNAL_LEASE_CONNECTION_H_
#define VMMSHARE_VMM_SHARE_INTERNAL_LEASE_CONNECTION_H_

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "platform/base/mutex.h"
#include "platform/ipc/channel.h"
#include "platform/os/process.h"
#include "vmm/memory/shareable.h"
#include "vmm/share/lease.h"

namespace vmm {

// Thread-safe. In a forked child it does nothing: the leases are the parent's.
class LeaseConnection {
 public:
  // The owner, at the other end of `channel`, has sent `ids`, one an import.
  LeaseConnection(platform::Channel channel, const std::vector<MemoryId>& ids);
  LeaseConnection(const LeaseConnection&) = delete;
  LeaseConnection& operator=(const LeaseConnection&) = delete;

  // Tells the owner; hangs up with the last one.
  void Return(const MemoryId& id);

  // Reads what the owner has sent, at most kMostNews messages, without a wait.
  LeaseStatus StatusOf(const MemoryId& id);
  // An owner may send faster than anybody reads.
  static constexpr int kMostNews = 8;

 private:
  struct Held {
    std::size_t times = 0;
    std::optional<absl::Time> return_by = std::nullopt;
  };

  // REQUIRES: is_reading_ was set by this thread.
  absl::Status ReadNews() ABSL_LOCKS_EXCLUDED(mutex_);

  const platform::MadeHere made_;
  platform::Channel channel_;

  platform::Mutex sending_;  // Held while the owner is told: up to a second.
  std::size_t to_return_ ABSL_GUARDED_BY(sending_);

  platform::Mutex mutex_;  // Nothing is read, sent or waited for meanwhile.
  std::map<MemoryId, Held> held_ ABSL_GUARDED_BY(mutex_);
  absl::Status connection_ ABSL_GUARDED_BY(mutex_);
  bool is_reading_ ABSL_GUARDED_BY(mutex_) = false;
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

#endif  // VMMSHARE_VMM_SHARE_INTERNAL_LEASE_CONNECTION_H_
