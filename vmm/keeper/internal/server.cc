#include "vmm/keeper/internal/server.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/annotate.h"
#include "platform/base/status_macros.h"
#include "platform/ipc/channel_address.h"
#include "platform/os/surroundings.h"
#include "vmm/keeper/internal/troubles.h"
#include "vmm/keeper/internal/turned_away.h"
#include "vmm/share/internal/protocol.h"

namespace vmm::keeper {
namespace {

// Descriptors that a session has open at most: its socket, an event to wait on,
// its process and lifeline, and the handles of one message.
constexpr std::uint64_t kHandlesOfASession = 4 + platform::kMaxHandles;
// Of the process itself: the streams, the listener, the store's, those that are being
// turned away, and a reference and a lifeline of each process that left with locks.
constexpr std::uint64_t kHandlesOfOurs =
    16 + SessionServer::kMaxTurnedAway + 2 * Server::kMostLeft;

// With fewer connections at once clients would turn each other away.
constexpr std::uint64_t kFewestSessions = 8;

// What can be served and kept without ever running out of descriptors.
struct Room {
  std::uint64_t sessions = 0;
  std::uint64_t handles = 0;  // 0, for no limit, where the system has none.
};

// Connections give way to handles, up to half of what there is.
absl::StatusOr<Room> RoomFor(std::uint64_t sessions) {
  absl::StatusOr<platform::DescriptorLimits> limits =
      platform::GetDescriptorLimits();
  if (absl::IsUnimplemented(limits.status())) return Room{sessions, 0};
  if (!limits.ok()) return limits.status();
  sessions = std::min(
      sessions,
      std::max(kFewestSessions, limits->soft / 2 / kHandlesOfASession));
  const std::uint64_t needed = kHandlesOfOurs + sessions * kHandlesOfASession;
  if (limits->soft > needed) return Room{sessions, limits->soft - needed};
  return absl::ResourceExhaustedError(absl::StrCat(
      "this process may open ", limits->soft, " descriptors, and ", sessions,
      " connections take up to ", needed,
      ": nothing could be kept. Raise the limit (`ulimit -n`, LimitNOFILE=)."));
}

// `why` nothing can listen at `address`, and who may be there if it is a process:
// most often another keeper.
absl::Status WithKeeperThere(const absl::Status& why,
                             const std::string& address) {
  if (!platform::IsTakenByProcess(why)) return why;
  return platform::Annotate(
      why, "",
      absl::StrCat("A keeper may run there already: `vmmshare keep --list "
                   "--address=",
                   address, "` asks it"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(
    ServerOptions options, absl::StatusOr<platform::ServiceManager> manager,
    platform::StoredHandles handles) {
  if (options.limits.handles == 0) {
    // systemd and most shells start programs with 1,024 for the sake of
    // select(), which is not used here.
    absl::Status raised = platform::RaiseDescriptorLimit();
    if (!raised.ok()) options.log(std::string(raised.message()));
    ASSIGN_OR_RETURN(const Room room, RoomFor(options.max_sessions));
    options.limits.handles = room.handles;
    options.max_sessions = room.sessions;
  }
  if (options.address.empty()) {
    ASSIGN_OR_RETURN(options.address, DefaultKeeperAddress());
  }
  ASSIGN_OR_RETURN(platform::ListenerOptions where,
                   platform::ListenerAt(options.address));
  const auto self = std::make_shared<Server*>();  // Set before it is called.
  absl::StatusOr<std::unique_ptr<SessionServer>> sessions = SessionServer::Bind(
      {.listener = std::move(where),
       .peers = options.peers,
       .limits = {options.max_sessions, options.max_user_sessions,
                  options.max_process_sessions},
       .owner = "the keeper",
       .remedy = "vmmshare keep --max-connections raises that",
       .failed = [said = std::make_shared<Troubles>(options.log)](
                     const absl::Status& why) { said->Note(why); },
       .turned_away = [said = std::make_shared<TurnedAway>(options.log)](
                          const platform::PeerCredentials& peer,
                          const absl::Status& why) { said->Note(peer, why); },
       .tidy = [self] { return (*self)->Tidy(); }});
  if (!sessions.ok())
    return WithKeeperThere(sessions.status(), options.address);
  std::unique_ptr<Server> server(new Server(
      std::move(options), Store(std::move(manager)), *std::move(sessions)));
  *self = server.get();
  server->Restore(std::move(handles));
  RETURN_IF_ERROR(server->sessions_->Start(
      [raw = server.get()](SessionServer::Session& connection) {
        raw->Serve(connection);
      }));
  const platform::MutexLock change(server->change_mutex_);
  const absl::Status told = server->store_.Ready();
  if (!told.ok()) {
    server->options_.log(
        absl::StrCat("systemd is not told that this keeper is "
                     "ready: ",
                     told.message()));
  }
  return server;
}

Server::Server(ServerOptions options, Store store,
               std::unique_ptr<SessionServer> sessions)
    : options_(std::move(options)),
      sessions_(std::move(sessions)),
      restart_note_(store.note()),
      store_(std::move(store)),
      registry_(options_.limits, platform::CurrentUser()) {}

void Server::Restore(platform::StoredHandles handles) {
  const platform::MutexLock change(change_mutex_);
  const platform::MutexLock lock(mutex_);
  std::vector<Store::Restored> whole =
      store_.Restore(std::move(handles), options_.log);
  for (Store::Restored& restored : whole) {
    const Record& record = restored.record;
    absl::Status kept =
        registry_.Restore(record.name, record.user, record.pid, record.since,
                          record.sealed, std::move(restored.content),
                          restored.saved, std::move(restored.replaced));
    if (!kept.ok()) {
      options_.log(absl::StrCat("a stored entry is refused: ", kept.message()));
      LogUnlessOk(store_.Remove(restored.saved));
    }
  }
}

Server::~Server() {
  {
    platform::MutexLock lock(mutex_);
    stop_asked_ = true;
    NotifyWaiters();
  }
  sessions_->Stop();
}

std::size_t Server::names() const {
  platform::MutexLock lock(mutex_);
  return registry_.size();
}

void Server::Serve(SessionServer::Session& connection) {
  Session session{connection.channel,
                  {connection.id, connection.peer.user, connection.peer.pid}};
  ServeAll(session).IgnoreError();  // It ends the session, nothing else.
  if (!HasSaidGoodbye(session) && LeaveLocks(session, connection)) return;
  // Before the hang-up: who sees that sees that the locks have gone, too.
  platform::MutexLock lock(mutex_);
  if (registry_.EndSession(session.client.session)) NotifyWaiters();
}

void Server::NotifyWaiters() {
  for (const platform::CancelEvent* const waiter : waiters_) waiter->Notify();
}

bool Server::IsGivingUp(const platform::Message& message) {
  return (message.type == protocol::kAbort ||
          message.type == protocol::kRefused) &&
         message.handles.empty();
}

absl::Status Server::CheckIsThere(Session& session) {
  const absl::StatusOr<platform::Message> word =
      session.channel.Receive(absl::InfinitePast());
  if (absl::IsDeadlineExceeded(word.status())) return absl::OkStatus();
  RETURN_IF_ERROR(word.status());
  RETURN_IF_ERROR(CheckSpeaker(session));
  session.said_goodbye = word->type == kGoodbye;
  session.gave_up = IsGivingUp(*word);
  return session.said_goodbye || session.gave_up
             ? absl::UnavailableError("the client has gone")
             : absl::InvalidArgumentError("a request before the last answer");
}

absl::Status Server::Await(Session& session, const Request& request,
                           const std::function<absl::StatusOr<bool>()>& attempt,
                           absl::Status* outcome) {
  const Deadline deadline = Deadline::In(request.wait);
  for (;;) {
    absl::StatusOr<platform::CancelEvent> changed =
        platform::CancelEvent::Create();
    std::string busy;
    std::list<const platform::CancelEvent*>::iterator waiter;
    {
      platform::MutexLock lock(mutex_);
      if (stop_asked_) return absl::CancelledError("the keeper stops");
      RETURN_IF_ERROR(CheckIsThere(session));
      // Or one that has its id by now would take over what another has left.
      LookAtLeft(&session.client);
      absl::StatusOr<bool> done = attempt();
      if (!done.ok() || *done) {
        *outcome = done.status();
        return absl::OkStatus();
      }
      if (!changed.ok()) {
        *outcome = changed.status();
        return absl::OkStatus();
      }
      busy = registry_.DescribeBusy(request.name);
      waiter = waiters_.insert(waiters_.end(), &*changed);
    }
    // Also ends when the peer, whose wait it is, has gone.
    absl::Status waited = session.channel.WaitForHangUp(deadline, &*changed);
    {
      platform::MutexLock lock(mutex_);
      waiters_.erase(waiter);
    }
    if (absl::IsDeadlineExceeded(waited)) {
      *outcome = absl::DeadlineExceededError(
          absl::StrCat("waited for ", busy, ", until the deadline"));
      return absl::OkStatus();
    }
    if (waited.ok()) return absl::UnavailableError("the client has gone");
    if (!absl::IsCancelled(waited)) return waited;
  }
}

}  // namespace vmm::keeper
