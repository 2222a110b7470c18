#include "vmm/endpoint_server.h"

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "platform/abandon.h"
#include "platform/process.h"
#include "vmm/pool/core.h"
#include "vmm/protocol.h"

namespace vmm {
namespace {

// How long the acceptor waits before it tries again when the process is out of
// descriptors: nothing tells it when there is one again.
constexpr std::chrono::milliseconds kRetryAfterExhaustion{20};

}  // namespace

absl::StatusOr<std::unique_ptr<Endpoint::Server>> Endpoint::Server::Start(
    const EndpointOptions& options) {
  absl::StatusOr<platform::CancelEvent> stop = platform::CancelEvent::Create();
  if (!stop.ok()) return stop.status();
  absl::StatusOr<platform::Listener> listener =
      platform::Listener::Bind(options.listener, options.peers);
  if (!listener.ok()) return listener.status();
  std::unique_ptr<Server> server(
      new Server(options, *std::move(listener), *std::move(stop)));
  try {
    server->acceptor_ =
        std::thread([raw = server.get()] { raw->AcceptLoop(); });
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot start the endpoint's thread: ", error.what()));
  }
  return server;
}

Endpoint::Server::Server(const EndpointOptions& options,
                         platform::Listener listener,
                         platform::CancelEvent stop)
    : options_(options),
      listener_(std::move(listener)),
      address_(listener_.address()),
      stop_(std::move(stop)),
      owner_pid_(platform::CurrentProcessId()),
      registry_(std::make_shared<EndpointRegistry>()),
      leases_(options.max_leases) {}

bool Endpoint::Server::IsOfAnotherProcess() const {
  return platform::CurrentProcessId() != owner_pid_;
}

void Endpoint::Server::Abandon(std::unique_ptr<Server> server) {
  // Nobody must be able to dial this process once the endpoint's own has
  // ended. Accept() changes nothing here but a counter.
  const platform::Listener closed = std::move(server->listener_);
  platform::Abandon(std::move(server));
}

Endpoint::Server::~Server() {
  stop_.Notify();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_asked_ = true;
  }
  stopping_.notify_all();
  if (acceptor_.joinable()) acceptor_.join();
  for (Session& session : sessions_) session.thread.join();
}

EndpointStatistics Endpoint::Server::statistics() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return statistics_;
}

void Endpoint::Server::AcceptLoop() {
  for (;;) {
    absl::StatusOr<platform::Channel> channel =
        listener_.Accept(absl::InfiniteFuture(), &stop_);
    JoinFinished();
    if (channel.ok()) {
      Admit(*std::move(channel));
      continue;
    }
    if (absl::IsCancelled(channel.status())) return;
    Record(channel.status());
    std::unique_lock<std::mutex> lock(mutex_);
    if (stopping_.wait_for(lock, kRetryAfterExhaustion,
                           [this] { return stop_asked_; })) {
      return;
    }
  }
}

void Endpoint::Server::Admit(platform::Channel channel) {
  absl::Status refusal;
  const auto served = static_cast<std::size_t>(
      std::count_if(sessions_.begin(), sessions_.end(),
                    [](const Session& one) { return !one.is_lease; }));
  if (served >= options_.max_sessions) {
    refusal = absl::ResourceExhaustedError(
        absl::StrCat("the owner serves ", served, " peers already, its limit"));
  } else {
    Session& session = sessions_.emplace_back(std::move(channel));
    try {
      session.thread = std::thread([this, &session] { Serve(session); });
      return;
    } catch (const std::system_error& error) {
      refusal = absl::ResourceExhaustedError(
          absl::StrCat("the owner cannot start a thread: ", error.what()));
      channel = std::move(session.channel);
      sessions_.pop_back();
    }
  }
  TurnAway(std::move(channel), refusal);
}

void Endpoint::Server::TurnAway(platform::Channel channel,
                                const absl::Status& why) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ++statistics_.refused;
  }
  turned_away_.Tell(std::move(channel), protocol::kAbort, why);
}

void Endpoint::Server::Serve(Session& session) {
  absl::Status ended = ServeRequest(session);
  session.channel.Close();
  if (!ended.ok() || !session.is_lease) Record(ended);
  session.done = true;
}

absl::Status Endpoint::Server::ServeRequest(Session& session) {
  platform::Channel& channel = session.channel;
  absl::StatusOr<platform::Message> message =
      channel.Receive(absl::Now() + options_.request_timeout, &stop_);
  if (!message.ok()) return message.status();
  if (message->type == pool::kSubscribe) return ServePool(channel, *message);
  return ServeMemory(session, *message);
}

absl::Status Endpoint::Server::ServeMemory(Session& session,
                                           const platform::Message& message) {
  platform::Channel& channel = session.channel;
  const absl::Time deadline = absl::Now() + options_.transfer_timeout;
  absl::StatusOr<std::vector<MemoryId>> ids = protocol::DecodeRequest(message);
  absl::StatusOr<std::vector<protocol::Outgoing>> outgoing =
      ids.ok() ? registry_->Find(*ids) : ids.status();
  std::vector<LeaseBook::Item> items;
  if (outgoing.ok()) {
    for (const protocol::Outgoing& one : *outgoing) {
      items.push_back({one.ticket.id, one.ticket.requested_size});
    }
  }
  // In the book before the first handle leaves: whatever happens then, it is
  // known who may have the memory.
  const absl::StatusOr<LeaseBook::Entry> lease =
      outgoing.ok() ? leases_.Add(channel, items)
                    : absl::StatusOr<LeaseBook::Entry>(outgoing.status());
  if (!lease.ok()) {
    protocol::SendError(channel, protocol::kAbort, lease.status(), deadline)
        .IgnoreError();  // The hang-up tells it otherwise.
    return lease.status();
  }
  absl::Status sent = protocol::SendAll(channel, *outgoing, deadline, &stop_);
  outgoing->clear();  // Handles of what may be withdrawn.
  if (!sent.ok()) {
    // Who refuses in so many words keeps nothing, and goes on to be heard.
    if (channel.is_open()) {
      leases_.Remove(*lease);
    } else {
      leases_.Detach(*lease);
    }
    return sent;
  }
  session.is_lease = true;
  Record(absl::OkStatus());
  leases_.Attach(*lease, channel);
  return AwaitReturn(channel, *lease);
}

absl::Status Endpoint::Server::AwaitReturn(platform::Channel& channel,
                                           LeaseBook::Entry lease) {
  for (;;) {
    absl::StatusOr<platform::Message> message =
        channel.Receive(absl::InfiniteFuture(), &stop_);
    absl::StatusOr<std::vector<MemoryId>> ids =
        message.ok() ? protocol::DecodeReturn(*message)
                     : absl::StatusOr<std::vector<MemoryId>>(message.status());
    const absl::StatusOr<bool> holds_more =
        ids.ok() ? leases_.Return(lease, *ids)
                 : absl::StatusOr<bool>(ids.status());
    if (holds_more.ok() && *holds_more) continue;
    if (holds_more.ok()) {
      leases_.Remove(lease);
      return absl::OkStatus();
    }
    leases_.Detach(lease);
    // Holders hold until they or this endpoint end.
    return message.ok() ? holds_more.status() : absl::OkStatus();
  }
}

absl::Status Endpoint::Server::ServePool(platform::Channel& channel,
                                         const platform::Message& message) {
  absl::StatusOr<DomainId> domain = pool::DecodeSubscribe(message);
  absl::StatusOr<std::shared_ptr<pool::Core>> pool =
      domain.ok() ? registry_->FindPool(*domain) : domain.status();
  if (!pool.ok()) {
    protocol::SendError(channel, protocol::kAbort, pool.status(),
                        absl::Now() + options_.transfer_timeout)
        .IgnoreError();  // The hang-up tells it otherwise.
    return pool.status();
  }
  absl::Status ended =
      (*pool)->ServePeer(*domain, channel, options_.transfer_timeout, stop_);
  // Subscribers stay until they or this endpoint end.
  return absl::IsUnavailable(ended) || absl::IsCancelled(ended)
             ? absl::OkStatus()
             : ended;
}

void Endpoint::Server::JoinFinished() {
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

void Endpoint::Server::Record(const absl::Status& ended) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (ended.ok()) {
    ++statistics_.served;
  } else {
    ++statistics_.failed;
    statistics_.last_error = ended;
  }
}

}  // namespace vmm
