// The threads behind an Endpoint; internal to vmm/.
#ifndef VMMSHARE_VMM_ENDPOINT_SERVER_H_
#define VMMSHARE_VMM_ENDPOINT_SERVER_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "platform/abandon.h"
#include "platform/channel.h"
#include "vmm/endpoint.h"
#include "vmm/endpoint_registry.h"
#include "vmm/lease_book.h"
#include "vmm/turned_away.h"

namespace vmm {

class Endpoint::Server : public platform::Abandonable {
 public:
  static absl::StatusOr<std::unique_ptr<Server>> Start(
      const EndpointOptions& options);
  // Ends all sessions. REQUIRES: !IsOfAnotherProcess().
  ~Server();

  // Whether this process was forked from the one that started the server. The
  // threads are not here then, and what they were changing at that moment may
  // be half changed for ever.
  bool IsOfAnotherProcess() const;
  // What is done in place of destruction there: closes the listening socket
  // and leaves the rest alone.
  static void Abandon(std::unique_ptr<Server> server);

  const std::shared_ptr<EndpointRegistry>& registry() const {
    return registry_;
  }
  const std::string& address() const { return address_; }
  EndpointStatistics statistics() const;
  LeaseBook& leases() { return leases_; }

 private:
  struct Session {
    explicit Session(platform::Channel c) : channel(std::move(c)) {}
    platform::Channel channel;
    std::thread thread;
    std::atomic<bool> is_lease{false};  // Served: it only holds what it has.
    std::atomic<bool> done{false};
  };

  Server(const EndpointOptions& options, platform::Listener listener,
         platform::CancelEvent stop);

  void AcceptLoop();
  void Admit(platform::Channel channel);
  void Serve(Session& session);
  absl::Status ServeRequest(Session& session);
  absl::Status ServeMemory(Session& session, const platform::Message& message);
  absl::Status AwaitReturn(platform::Channel& channel, LeaseBook::Entry lease);
  absl::Status ServePool(platform::Channel& channel,
                         const platform::Message& message);
  void JoinFinished();
  void TurnAway(platform::Channel channel, const absl::Status& why);
  void Record(const absl::Status& ended);

  const EndpointOptions options_;
  platform::Listener listener_;
  const std::string address_;
  const platform::CancelEvent stop_;
  const std::int64_t owner_pid_;
  const std::shared_ptr<EndpointRegistry> registry_;
  LeaseBook leases_;
  std::thread acceptor_;
  std::list<Session> sessions_;  // Touched by the acceptor, and after it.
  TurnedAway turned_away_;       // The same.

  mutable std::mutex mutex_;
  std::condition_variable stopping_;
  bool stop_asked_ = false;        // Guarded by mutex_.
  EndpointStatistics statistics_;  // Guarded by mutex_.
};

}  // namespace vmm

#endif  // VMMSHARE_VMM_ENDPOINT_SERVER_H_
