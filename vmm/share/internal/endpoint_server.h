// What an Endpoint does for each that connects; internal to vmm/.
#ifndef VMMSHARE_VMM_SHARE_INTERNAL_ENDPOINT_SERVER_H_
#define VMMSHARE_VMM_SHARE_INTERNAL_ENDPOINT_SERVER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "platform/base/abandon.h"
#include "platform/base/mutex.h"
#include "platform/ipc/channel.h"
#include "platform/ipc/peer_watch.h"
#include "vmm/share/endpoint.h"
#include "vmm/share/internal/lease_book.h"
#include "vmm/share/internal/session_server.h"
#include "vmm/share/internal/share_registry.h"

namespace vmm {

class Endpoint::Server : public platform::Abandonable {
 public:
  static absl::StatusOr<std::unique_ptr<Server>> Start(
      const EndpointOptions& options);
  // Whether this process was forked from the one that started the server. The
  // threads are not here then, and what they were changing at that moment may
  // be half changed for ever.
  bool IsOfAnotherProcess() const;
  // What is done in place of destruction there: closes the listening socket
  // and leaves the rest alone.
  static void Abandon(std::unique_ptr<Server> server);

  const std::shared_ptr<ShareRegistry>& registry() const { return registry_; }
  const std::string& address() const { return sessions_->address(); }
  EndpointStatistics statistics() const;
  LeaseBook& leases() { return leases_; }

 private:
  using Session = SessionServer::Session;

  explicit Server(const EndpointOptions& options);

  const platform::CancelEvent& stop() const { return sessions_->stop(); }
  void Serve(Session& session);
  absl::Status ServeRequest(Session& session);
  // Writes the peer down before the first handle leaves: whatever happens then,
  // it is known who may have the memory. None for a service.
  absl::StatusOr<std::optional<LeaseBook::Entry>> AddLease(
      const platform::Channel& channel, platform::PeerWatch& watch,
      absl::Span<const ShareRegistry::Found> found);
  absl::Status ServeMemory(Session& session, LeaseBook::Entry lease,
                           std::vector<ShareRegistry::Found> found);
  absl::Status AwaitReturn(platform::Channel& channel, LeaseBook::Entry lease);
  absl::Status ServeWith(const std::shared_ptr<PeerService>& service,
                         platform::Channel& channel, platform::PeerWatch watch,
                         Access access);
  // As SessionServer::Options::tidy.
  bool Tidy();
  // Tells the peer why it gets nothing, if its channel is open; returns that.
  absl::Status Refuse(platform::Channel& channel, const absl::Status& why);
  void Record(const absl::Status& ended);

  const EndpointOptions options_;
  const std::uint64_t owner_;  // The mark of the process that started it.
  const std::shared_ptr<ShareRegistry> registry_;
  LeaseBook leases_;

  mutable platform::Mutex mutex_;
  EndpointStatistics statistics_ ABSL_GUARDED_BY(mutex_);
  // Whose peers have left, since nobody else may look when those end.
  std::set<std::shared_ptr<PeerService>> left_ ABSL_GUARDED_BY(mutex_);

  std::unique_ptr<SessionServer> sessions_;
};

}  // namespace vmm

#endif  // VMMSHARE_VMM_SHARE_INTERNAL_ENDPOINT_SERVER_H_
