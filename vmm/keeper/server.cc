#include "vmm/keeper/server.h"

#include <algorithm>
#include <chrono>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "platform/channel_address.h"
#include "platform/surroundings.h"
#include "vmm/protocol.h"

namespace vmm::keeper {
namespace {

// How long the acceptor waits before it tries again when the process is out of
// descriptors: nothing tells it when there is one again.
constexpr std::chrono::milliseconds kRetryAfterExhaustion{20};

// Descriptors that a session has open at most: its socket, an event to wait on
// and the handles of one message.
constexpr std::uint64_t kHandlesOfASession = 2 + platform::kMaxHandles;
// Of the process itself: the streams, the listener, the store's, and those that
// are being turned away.
constexpr std::uint64_t kHandlesOfOurs = 16 + TurnedAway::kMax;

// How many handles can be kept without ever running out of descriptors. 0, for
// no limit, where the system has none.
absl::StatusOr<std::uint64_t> RoomForHandles(std::uint64_t sessions) {
  absl::StatusOr<platform::DescriptorLimits> limits =
      platform::GetDescriptorLimits();
  if (absl::IsUnimplemented(limits.status())) return 0;
  if (!limits.ok()) return limits.status();
  const std::uint64_t needed = kHandlesOfOurs + sessions * kHandlesOfASession;
  if (limits->soft > needed) return limits->soft - needed;
  return absl::ResourceExhaustedError(absl::StrCat(
      "this process may open ", limits->soft, " descriptors, and ", sessions,
      " connections take up to ", needed,
      ": nothing could be kept. Raise the limit (`ulimit -n`, LimitNOFILE=), "
      "or allow fewer connections."));
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
    absl::StatusOr<std::uint64_t> room = RoomForHandles(options.max_sessions);
    if (!room.ok()) return room.status();
    options.limits.handles = *room;
  }
  if (options.address.empty()) {
    absl::StatusOr<std::string> address = DefaultKeeperAddress();
    if (!address.ok()) return address.status();
    options.address = *std::move(address);
  }
  absl::StatusOr<platform::ListenerOptions> where =
      platform::ListenerAt(options.address);
  if (!where.ok()) return where.status();
  absl::StatusOr<platform::CancelEvent> stop = platform::CancelEvent::Create();
  if (!stop.ok()) return stop.status();
  absl::StatusOr<platform::Listener> listener =
      platform::Listener::Bind(*where, options.peers);
  if (!listener.ok()) return listener.status();
  std::unique_ptr<Server> server(
      new Server(std::move(options), Store(std::move(manager)),
                 *std::move(listener), *std::move(stop)));
  server->Restore(std::move(handles));
  try {
    server->acceptor_ =
        std::thread([raw = server.get()] { raw->AcceptLoop(); });
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot start the keeper's thread: ", error.what()));
  }
  absl::Status told = server->store_.Ready();
  if (!told.ok()) {
    server->options_.log(
        absl::StrCat("systemd is not told that this keeper is "
                     "ready: ",
                     told.message()));
  }
  return server;
}

Server::Server(ServerOptions options, Store store, platform::Listener listener,
               platform::CancelEvent stop)
    : options_(std::move(options)),
      listener_(std::move(listener)),
      address_(listener_.address()),
      stop_(std::move(stop)),
      restart_note_(store.note()),
      store_(std::move(store)),
      registry_(options_.limits, platform::CurrentUser()) {}

void Server::Restore(platform::StoredHandles handles) {
  std::vector<Store::Restored> whole =
      store_.Restore(std::move(handles), options_.log);
  for (Store::Restored& restored : whole) {
    const Record& record = restored.record;
    absl::Status kept = registry_.Restore(
        record.name, record.user, record.pid, record.since, record.sealed,
        std::move(restored.content), restored.saved);
    if (!kept.ok()) {
      options_.log(absl::StrCat("a stored entry is refused: ", kept.message()));
      absl::Status removed = store_.Remove(restored.saved);
      if (!removed.ok()) options_.log(std::string(removed.message()));
    }
  }
}

Server::~Server() {
  stop_.Notify();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_asked_ = true;
    NotifyWaiters();
  }
  stopping_.notify_all();
  if (acceptor_.joinable()) acceptor_.join();
  for (Session& session : sessions_) session.thread.join();
}

std::size_t Server::names() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return registry_.size();
}

void Server::AcceptLoop() {
  for (;;) {
    absl::StatusOr<platform::Channel> channel =
        listener_.Accept(absl::InfiniteFuture(), &stop_);
    JoinFinished();
    if (channel.ok()) {
      Admit(*std::move(channel));
      continue;
    }
    if (absl::IsCancelled(channel.status())) return;
    options_.log(std::string(channel.status().message()));
    std::unique_lock<std::mutex> lock(mutex_);
    if (stopping_.wait_for(lock, kRetryAfterExhaustion,
                           [this] { return stop_asked_; })) {
      return;
    }
  }
}

void Server::Admit(platform::Channel channel) {
  const auto of_user = static_cast<std::size_t>(std::count_if(
      sessions_.begin(), sessions_.end(), [&](const Session& session) {
        return session.client.user == channel.peer().user;
      }));
  absl::Status refusal;
  if (sessions_.size() >= options_.max_sessions) {
    refusal = absl::ResourceExhaustedError(
        absl::StrCat("the keeper has ", sessions_.size(),
                     " connections already, its limit"));
  } else if (of_user >= options_.max_user_sessions) {
    refusal = absl::ResourceExhaustedError(absl::StrCat(
        "user ", channel.peer().user.text(), " has ", of_user,
        " connections to the keeper already, the limit of one user"));
  } else {
    Session& session =
        sessions_.emplace_back(std::move(channel), next_session_++);
    try {
      session.thread = std::thread([this, &session] {
        Serve(session).IgnoreError();  // It ends the session, nothing else.
        {
          std::lock_guard<std::mutex> lock(mutex_);
          if (registry_.EndSession(session.client.session)) NotifyWaiters();
        }
        // After the locks have gone: who sees the hang-up sees that too.
        session.channel.Close();
        session.done = true;
      });
      return;
    } catch (const std::system_error& error) {
      refusal = absl::ResourceExhaustedError(
          absl::StrCat("the keeper cannot start a thread: ", error.what()));
      channel = std::move(session.channel);
      sessions_.pop_back();
    }
  }
  turned_away_.Tell(std::move(channel),
                    static_cast<protocol::MessageType>(kError), refusal);
}

void Server::JoinFinished() {
  for (auto session = sessions_.begin(); session != sessions_.end();) {
    if (session->done) {
      session->thread.join();
      session = sessions_.erase(session);
    } else {
      ++session;
    }
  }
  turned_away_.ForgetGone();
}

void Server::NotifyWaiters() {
  for (const Waiter& waiter : waiters_) waiter.event->Notify();
}

absl::Status Server::Await(Session& session, const Request& request,
                           const std::function<absl::StatusOr<bool>()>& attempt,
                           absl::Status* outcome) {
  const absl::Time deadline = absl::Now() + request.wait;
  for (;;) {
    absl::StatusOr<platform::CancelEvent> changed =
        platform::CancelEvent::Create();
    std::string busy;
    std::list<Waiter>::iterator waiter;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (stop_asked_) return absl::CancelledError("the keeper stops");
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
      waiter = waiters_.insert(waiters_.end(), Waiter{&*changed});
    }
    // Also ends when the peer, whose wait it is, has gone.
    absl::Status waited = session.channel.WaitForHangUp(deadline, &*changed);
    {
      std::lock_guard<std::mutex> lock(mutex_);
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
