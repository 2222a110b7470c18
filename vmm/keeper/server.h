// Server: what `vmmshare keep` runs; internal to vmm/.
//
// A thread accepts connections and each is served on a thread of its own, as an
// endpoint's are, so that a slow or hostile peer delays nobody. No thread calls
// the CUDA driver: none is loaded.
#ifndef VMMSHARE_VMM_KEEPER_SERVER_H_
#define VMMSHARE_VMM_KEEPER_SERVER_H_

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "platform/channel.h"
#include "platform/service_manager.h"
#include "vmm/keeper/protocol.h"
#include "vmm/keeper/registry.h"
#include "vmm/keeper/store.h"
#include "vmm/turned_away.h"

namespace vmm::keeper {

struct ServerOptions {
  std::string address = {};         // Empty: DefaultKeeperAddress().
  platform::PeerPolicy peers = {};  // Who may ask: this user, and these.
  // handles = 0: what the descriptor limit of the process, which is raised as
  // far as it may be, leaves beside the connections.
  Limits limits = {};
  // Connections at once, and of one user; more are told RESOURCE_EXHAUSTED. A
  // connection is a writer's life line, so a quiet one is not ended.
  std::size_t max_sessions = 64;
  std::size_t max_user_sessions = 48;
  // A peer that has asked for nothing yet is disconnected after so long,
  absl::Duration first_request_timeout = absl::Seconds(5);
  // one that has not sent or imported memory after so long, too.
  absl::Duration transfer_timeout = absl::Seconds(30);
  // A line about what went wrong, without its end.
  std::function<void(const std::string&)> log = [](const std::string&) {};
};

// Thread-safe. Must not be alive in a process that forks.
class Server {
 public:
  // Serves what `handles` holds of a keeper before this one, and tells
  // `manager`, if it is one, that it is ready. Errors as
  // platform::Listener::Bind; RESOURCE_EXHAUSTED without a thread, or when the
  // descriptor limit is too low for max_sessions.
  static absl::StatusOr<std::unique_ptr<Server>> Start(
      ServerOptions options, absl::StatusOr<platform::ServiceManager> manager,
      platform::StoredHandles handles);
  // Ends all connections.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  const std::string& address() const { return address_; }
  // Why nothing survives a restart; empty when it does.
  const std::string& restart_note() const { return restart_note_; }
  // How many names are taken, of whatever state.
  std::size_t names() const;

 private:
  struct Session {
    Session(platform::Channel c, std::uint64_t id)
        : channel(std::move(c)),
          client{id, channel.peer().user, channel.peer().pid} {}
    platform::Channel channel;
    Client client;
    std::thread thread;
    std::atomic<bool> done{false};
  };
  // A session that waits for something to change.
  struct Waiter {
    const platform::CancelEvent* event;
  };

  Server(ServerOptions options, Store store, platform::Listener listener,
         platform::CancelEvent stop);
  void Restore(platform::StoredHandles handles);

  void AcceptLoop();
  void Admit(platform::Channel channel);
  void JoinFinished();

  // An error of the following ends the session; what the client is told does
  // not.
  absl::Status Serve(Session& session);
  absl::Status ServeRequest(Session& session, const Request& request);
  absl::Status ServePut(Session& session, const Request& request);
  absl::Status ServeAttach(Session& session, const Request& request);
  absl::Status ServeAttachOrCreate(Session& session, const Request& request);
  absl::Status ServeLock(Session& session, const Request& request);
  absl::Status ServeList(Session& session, const Request& request);

  absl::Status Keep(const Request& request, const Client& client,
                    Content content);
  absl::Status Seal(const std::string& name, const Client& client);
  absl::Status Drop(const std::string& name, const Client& client);
  absl::Status SendFound(Session& session, const std::string& name,
                         const Registry::Found& found);
  // Ok, or the error.
  absl::Status Answer(Session& session, const absl::Status& outcome);

  // Calls `attempt`, with mutex_ held, until it answers true or an error, after
  // every change; `outcome` is OK or that error, or a DEADLINE_EXCEEDED that
  // names whom `request` waits for. The answer is the session's: its peer has
  // gone, or the server stops.
  absl::Status Await(Session& session, const Request& request,
                     const std::function<absl::StatusOr<bool>()>& attempt,
                     absl::Status* outcome);
  // Has all that wait look again. REQUIRES: mutex_ is held.
  void NotifyWaiters();

  const ServerOptions options_;
  platform::Listener listener_;
  const std::string address_;
  const platform::CancelEvent stop_;
  std::string restart_note_;
  std::thread acceptor_;
  std::uint64_t next_session_ = 1;  // Of the acceptor, as the next two.
  std::list<Session> sessions_;
  TurnedAway turned_away_;

  // Held while the store and the registry are changed together, which can take
  // as long as the service manager takes to answer. Taken before mutex_.
  std::mutex change_mutex_;
  Store store_;  // Guarded by change_mutex_.

  mutable std::mutex mutex_;
  std::condition_variable stopping_;
  bool stop_asked_ = false;    // Guarded by mutex_.
  Registry registry_;          // Guarded by mutex_.
  std::list<Waiter> waiters_;  // Guarded by mutex_.
};

}  // namespace vmm::keeper

#endif  // VMMSHARE_VMM_KEEPER_SERVER_H_
