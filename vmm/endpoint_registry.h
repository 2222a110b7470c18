// What an endpoint has published; internal to vmm/.
#ifndef VMMSHARE_VMM_ENDPOINT_REGISTRY_H_
#define VMMSHARE_VMM_ENDPOINT_REGISTRY_H_

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "vmm/exporter.h"
#include "vmm/memory_id.h"
#include "vmm/pool_ticket.h"
#include "vmm/protocol.h"
#include "vmm/ticket.h"

namespace vmm {

namespace pool {
class Core;
}  // namespace pool

// Thread-safe.
class EndpointRegistry {
 public:
  // ALREADY_EXISTS when `ticket`'s id is there.
  absl::Status Add(const Ticket& ticket, std::vector<ExportedHandle> handles);
  void Remove(const MemoryId& id);

  // What to send for `ids`. Each answer keeps its handles open, so that a
  // withdrawal meanwhile does no harm. NOT_FOUND names the first unknown id.
  absl::StatusOr<std::vector<protocol::Outgoing>> Find(
      absl::Span<const MemoryId> ids) const;

  // The same for sharing domains of pools.
  absl::Status AddPool(const DomainId& domain,
                       std::shared_ptr<pool::Core> pool);
  void RemovePool(const DomainId& domain);
  absl::StatusOr<std::shared_ptr<pool::Core>> FindPool(
      const DomainId& domain) const;

 private:
  struct Entry {
    Ticket ticket;
    std::vector<ExportedHandle> handles;
  };

  mutable std::mutex mutex_;
  std::map<MemoryId, std::shared_ptr<const Entry>> entries_;
  std::map<DomainId, std::shared_ptr<pool::Core>> pools_;
};

}  // namespace vmm

#endif  // VMMSHARE_VMM_ENDPOINT_REGISTRY_H_
