// Server: what `vmmshare keep` runs; internal to vmm/.
//
// Each connection is served on a thread of its own, as an endpoint's are. No
// thread calls the CUDA driver: none is loaded.
#ifndef VMMSHARE_VMM_KEEPER_INTERNAL_SERVER_H_
#define VMMSHARE_VMM_KEEPER_INTERNAL_SERVER_H_

#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "platform/base/mutex.h"
#include "platform/ipc/channel.h"
#include "platform/ipc/peer_watch.h"
#include "platform/os/service_manager.h"
#include "vmm/keeper/internal/protocol.h"
#include "vmm/keeper/internal/registry.h"
#include "vmm/keeper/internal/store.h"
#include "vmm/share/internal/session_server.h"

namespace vmm::keeper {

struct ServerOptions {
  std::string address = {};         // Empty: DefaultKeeperAddress().
  platform::PeerPolicy peers = {};  // Who may ask: this user, and these.
  // handles = 0: what the descriptor limit of the process, which is raised as
  // far as it may be, leaves beside the connections.
  Limits limits = {};
  // Connections at once, of one user and of one process, as in EndpointOptions.
  // A connection is a writer's life line, so a quiet one is not ended.
  std::size_t max_sessions = 64;
  std::size_t max_user_sessions = 0;
  std::size_t max_process_sessions = 0;
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
  // Processes whose connections ended with locks.
  static constexpr std::size_t kMostLeft = 16;

  // Serves what `handles` holds of a keeper before this one, and tells
  // `manager`, if it is one, that it is ready. Errors as
  // platform::Listener::Bind; RESOURCE_EXHAUSTED without a thread, or when the
  // descriptor limit is too low for a few connections. Where it is too low for
  // max_sessions, there are fewer.
  static absl::StatusOr<std::unique_ptr<Server>> Start(
      ServerOptions options, absl::StatusOr<platform::ServiceManager> manager,
      platform::StoredHandles handles);
  // Ends all connections.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  const std::string& address() const { return sessions_->address(); }
  // Why nothing survives a restart; empty when it does.
  const std::string& restart_note() const { return restart_note_; }
  // How many names are taken, of whatever state.
  std::size_t names() const;

 private:
  // What a thread has of its connection.
  struct Session {
    platform::Channel& channel;
    Client client;
    std::optional<platform::PeerWatch> watch = {};  // Before it has a lock.
    bool said_goodbye = false;
    bool gave_up = false;  // And says nothing more but goodbye.
  };
  // A process whose connection ended with locks.
  struct Left {
    Client client;
    platform::PeerWatch watch;
  };

  Server(ServerOptions options, Store store,
         std::unique_ptr<SessionServer> sessions);
  void Restore(platform::StoredHandles handles);

  const platform::CancelEvent& stop() const { return sessions_->stop(); }
  void Serve(SessionServer::Session& connection);
  // Also behind what was answered last.
  static bool HasSaidGoodbye(Session& session);
  // Closes the connection. Returns true when what the session has locked stays
  // with its process, whose end Tidy() looks for from now on; false when nothing
  // is locked, its end is proven, or the system cannot tell.
  bool LeaveLocks(Session& session, SessionServer::Session& connection);
  enum class HandedOver {
    kNot,        // There is no room.
    kToAnother,  // The locks, to what is left of the same process already.
    kToTidy,     // The watch.
  };
  HandedOver HandOver(Session& session, bool ended)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Frees the locks of processes whose end is proven by now; whether any are
  // left.
  bool Tidy();
  // Frees those of them; with `of`, only of processes that had its id.
  void LookAtLeft(const Client* of) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // An error of the following ends the session; what the client is told does
  // not.
  absl::Status ServeAll(Session& session);
  // Whether a client says that it will ask for nothing more, and keeps its
  // locks until it says goodbye.
  static bool IsGivingUp(const platform::Message& message);
  // PERMISSION_DENIED when what came last was sent by a process of another user
  // than made the connection, by whose name and quota it is served.
  static absl::Status CheckSpeaker(const Session& session);
  // What it had reserved goes.
  void GiveUp(Session& session);
  // Before a lock may be gained: who speaks is the client's process, whose end can
  // be looked for from then on.
  absl::Status WatchProcess(Session& session);
  absl::Status ServeRequest(Session& session, const Request& request);
  absl::Status ServePut(Session& session, const Request& request);
  absl::Status ServeAttach(Session& session, const Request& request);
  absl::Status ServeAttachOrCreate(Session& session, const Request& request);
  absl::Status ServeLock(Session& session, const Request& request);
  absl::Status ServeList(Session& session, const Request& request);

  absl::Status Keep(const Request& request, const Client& client,
                    Content content);
  // Of a kReplace; `content` is checked.
  absl::Status Replace(const Request& request, const Client& client,
                       std::shared_ptr<const Content> content);
  // From the store, what it did not remove at once.
  absl::Status RemoveReplaced(const std::string& name)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(change_mutex_);
  absl::Status Seal(const std::string& name, const Client& client);
  absl::Status Drop(const std::string& name, const Client& client);
  absl::Status SendFound(Session& session, const std::string& name,
                         const Registry::Found& found);
  // Ok, or the error.
  absl::Status Answer(Session& session, const absl::Status& outcome);
  // Answers `why`, and returns it: with that the session ends.
  absl::Status Refuse(Session& session, const absl::Status& why);

  // Calls `attempt`, with mutex_ held, until it returns true or an error, after
  // every change; `outcome` is OK or that error, or a DEADLINE_EXCEEDED that
  // names whom `request` waits for. The answer is the session's: its peer has
  // gone, or the server stops.
  absl::Status Await(Session& session, const Request& request,
                     const std::function<absl::StatusOr<bool>()>& attempt,
                     absl::Status* outcome);
  // Before a request is served, and before a lock is given: the client has
  // neither left nor, while it waits for an answer, said anything else. On
  // Windows what it said behind its request is lost with the hang-up, once
  // something was sent to it.
  static absl::Status CheckIsThere(Session& session);
  void LogUnlessOk(const absl::Status& status) const {
    if (!status.ok()) options_.log(std::string(status.message()));
  }
  // Has all that wait look again.
  void NotifyWaiters() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const ServerOptions options_;
  const std::unique_ptr<SessionServer> sessions_;
  std::string restart_note_;

  // Held while the store and the registry are changed together, which can take
  // as long as the service manager takes to answer.
  platform::Mutex change_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);
  Store store_ ABSL_GUARDED_BY(change_mutex_);

  mutable platform::Mutex mutex_;
  bool stop_asked_ ABSL_GUARDED_BY(mutex_) = false;
  Registry registry_ ABSL_GUARDED_BY(mutex_);
  // Of sessions that wait for something to change.
  std::list<const platform::CancelEvent*> waiters_ ABSL_GUARDED_BY(mutex_);
  std::list<Left> left_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace vmm::keeper

#endif  // VMMSHARE_VMM_KEEPER_INTERNAL_SERVER_H_
