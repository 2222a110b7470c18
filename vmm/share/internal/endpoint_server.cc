#include "vmm/share/internal/endpoint_server.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "platform/base/abandon.h"
#include "platform/base/status_macros.h"
#include "platform/os/process.h"
#include "vmm/share/internal/protocol.h"

namespace vmm {
namespace {

// How often it is asked whether the process of a lease has ended: somebody else
// may have its connection, which tells nothing then.
constexpr absl::Duration kLookAtHolder = absl::Seconds(2);

}  // namespace

absl::StatusOr<std::unique_ptr<Endpoint::Server>> Endpoint::Server::Start(
    const EndpointOptions& options) {
  std::unique_ptr<Server> server(new Server(options));
  ASSIGN_OR_RETURN(
      server->sessions_,
      SessionServer::Bind(
          {.listener = options.listener,
           .peers = options.peers,
           .limits = {options.max_sessions, options.max_user_sessions,
                      options.max_process_sessions},
           .owner = "the owner",
           .remedy = "Raise max_sessions where it is served: in C++ "
                     "EndpointOptions::max_sessions or its like, in C "
                     "vmmshare_server_options::max_sessions, in Python "
                     "vmmshare.Server(max_sessions=)",
           .failed = [raw = server.get()](
                         const absl::Status& why) { raw->Record(why); },
           .tidy = [raw = server.get()] { return raw->Tidy(); }}));
  RETURN_IF_ERROR(server->sessions_->Start(
      [raw = server.get()](Session& session) { raw->Serve(session); }));
  return server;
}

Endpoint::Server::Server(const EndpointOptions& options)
    : options_(options),
      owner_(platform::ProcessMark()),
      registry_(std::make_shared<ShareRegistry>()),
      leases_(PeerLimits{options.max_leases, options.max_user_leases,
                         options.max_process_leases}
                  .WithDefaults(options.peers)) {}

bool Endpoint::Server::IsOfAnotherProcess() const {
  return platform::ProcessMark() != owner_;
}

void Endpoint::Server::Abandon(std::unique_ptr<Server> server) {
  // Nobody must be able to dial this process once the endpoint's own has
  // ended.
  server->sessions_->CloseListener();
  platform::Abandon(std::move(server));
}

EndpointStatistics Endpoint::Server::statistics() const {
  platform::MutexLock lock(mutex_);
  EndpointStatistics statistics = statistics_;
  statistics.refused = sessions_->refused();
  return statistics;
}

void Endpoint::Server::Serve(Session& session) {
  const absl::Status ended = ServeRequest(session);
  if (!ended.ok() || session.is_counted) Record(ended);
}

absl::Status Endpoint::Server::ServeRequest(Session& session) {
  platform::Channel& channel = session.channel;
  const Deadline deadline = Deadline::In(options_.request_timeout);
  absl::StatusOr<platform::PeerWatch> watch =
      platform::PeerWatch::Receive(channel, deadline, &stop());
  if (!watch.ok()) return Refuse(channel, watch.status());
  const absl::StatusOr<platform::Message> message =
      channel.Receive(deadline, &stop());
  if (!message.ok()) return Refuse(channel, message.status());
  const absl::StatusOr<std::vector<ShareKey>> keys =
      protocol::DecodeOpen(*message);
  if (!keys.ok()) return Refuse(channel, keys.status());
  std::optional<LeaseBook::Entry> lease;
  absl::StatusOr<std::vector<ShareRegistry::Found>> found = registry_->Find(
      *keys, channel.peer().user,
      [&](absl::Span<const ShareRegistry::Found> all) -> absl::Status {
        ASSIGN_OR_RETURN(lease, AddLease(channel, *watch, all));
        return absl::OkStatus();
      });
  if (!found.ok()) return Refuse(channel, found.status());
  if (lease.has_value()) {
    return ServeMemory(session, *lease, *std::move(found));
  }
  return ServeWith(std::get<std::shared_ptr<PeerService>>(found->front().what),
                   channel, *std::move(watch), found->front().access);
}

absl::StatusOr<std::optional<LeaseBook::Entry>> Endpoint::Server::AddLease(
    const platform::Channel& channel, platform::PeerWatch& watch,
    absl::Span<const ShareRegistry::Found> found) {
  std::vector<LeaseBook::Item> items;
  for (const ShareRegistry::Found& one : found) {
    const auto* memory =
        std::get_if<std::shared_ptr<const PublishedMemory>>(&one.what);
    if (memory == nullptr && found.size() == 1) return std::nullopt;
    if (memory == nullptr) {
      return absl::InvalidArgumentError(
          "a request has several keys, not all of memory");
    }
    items.push_back({(*memory)->ticket.id, (*memory)->ticket.requested_size});
  }
  return leases_.Add(channel.peer(), std::move(watch), items);
}

absl::Status Endpoint::Server::Refuse(platform::Channel& channel,
                                      const absl::Status& why) {
  // Nobody waits for a peer that does not read why: the hang-up tells it.
  protocol::SendError(channel, protocol::kAbort, why, absl::InfinitePast())
      .IgnoreError();
  return why;
}

bool Endpoint::Server::Tidy() {
  const bool has_leases = leases_.Tidy();
  std::set<std::shared_ptr<PeerService>> services;
  {
    platform::MutexLock lock(mutex_);
    services.swap(left_);
  }
  std::erase_if(services, [](const auto& one) { return !one->Tidy(); });
  platform::MutexLock lock(mutex_);
  left_.merge(services);
  return has_leases || !left_.empty();
}

absl::Status Endpoint::Server::ServeWith(
    const std::shared_ptr<PeerService>& service, platform::Channel& channel,
    platform::PeerWatch watch, Access access) {
  RETURN_IF_ERROR(protocol::SendGranted(
      channel, access, Deadline::In(options_.transfer_timeout)));
  absl::Status ended = service->ServePeer(channel, std::move(watch),
                                          options_.transfer_timeout, stop());
  {
    platform::MutexLock lock(mutex_);
    left_.insert(service);
  }
  // Subscribers stay until they or this endpoint end.
  return absl::IsUnavailable(ended) || absl::IsCancelled(ended)
             ? absl::OkStatus()
             : ended;
}

absl::Status Endpoint::Server::ServeMemory(
    Session& session, LeaseBook::Entry lease,
    std::vector<ShareRegistry::Found> found) {
  platform::Channel& channel = session.channel;
  const Deadline deadline = Deadline::In(options_.transfer_timeout);
  std::vector<protocol::Outgoing> outgoing;
  Access access = Access::kReadWrite;
  for (const ShareRegistry::Found& one : found) {
    const auto& memory =
        std::get<std::shared_ptr<const PublishedMemory>>(one.what);
    if (absl::Status freed = CheckIsStillThere(*memory); !freed.ok()) {
      leases_.Remove(lease);
      return Refuse(channel, freed);
    }
    outgoing.push_back(OutgoingOf(memory));
    access = std::min(access, one.access);
  }
  found.clear();
  bool gave = false;
  absl::Status sent = protocol::SendGranted(channel, access, deadline);
  if (sent.ok()) {
    sent = protocol::SendAll(channel, outgoing, deadline, &stop(), &gave);
  }
  // Handles of what may be withdrawn: whoever is not in the book has none.
  outgoing.clear();
  if (!sent.ok()) {
    // It was told that no more comes, lets go of what came, and says so next. It
    // has time for that also when the transfer's has passed.
    if (gave && channel.is_open()) {
      const absl::StatusOr<platform::Message> word = channel.Receive(
          std::max(deadline, Deadline::In(options_.request_timeout)), &stop());
      gave = !word.ok() || word->type != protocol::kRefused;
    }
    if (gave) {
      leases_.Detach(lease);
    } else {
      leases_.Remove(lease);
    }
    return sent;
  }
  session.is_counted = false;
  Record(absl::OkStatus());
  leases_.Attach(lease, channel);
  return AwaitReturn(channel, lease);
}

absl::Status Endpoint::Server::AwaitReturn(platform::Channel& channel,
                                           LeaseBook::Entry lease) {
  for (;;) {
    const absl::StatusOr<platform::Message> message =
        channel.Receive(Deadline::In(kLookAtHolder), &stop());
    if (absl::IsDeadlineExceeded(message.status())) {
      if (!leases_.HasEnded(lease)) continue;
      break;
    }
    if (!message.ok()) {
      // Holders hold until they or this endpoint end.
      leases_.Detach(lease);
      return absl::OkStatus();
    }
    const absl::StatusOr<std::vector<MemoryId>> ids =
        protocol::DecodeReturn(*message);
    const absl::StatusOr<bool> holds_more =
        ids.ok() ? leases_.Return(lease, *ids) : ids.status();
    if (!holds_more.ok()) {
      leases_.Detach(lease);
      return holds_more.status();
    }
    if (!*holds_more) break;
  }
  leases_.Remove(lease);
  return absl::OkStatus();
}

void Endpoint::Server::Record(const absl::Status& ended) {
  platform::MutexLock lock(mutex_);
  if (ended.ok()) {
    ++statistics_.served;
  } else {
    ++statistics_.failed;
    statistics_.last_error = ended;
  }
}

}  // namespace vmm
