// What a keeper does for one connection: see server.h.
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "platform/base/status_macros.h"
#include "vmm/keeper/internal/server.h"
#include "vmm/share/internal/protocol.h"

namespace vmm::keeper {
namespace {

// Entries of a page of the list: about what fits into a message.
constexpr std::size_t kPageSize = 256;

}  // namespace

absl::Status Server::ServeAll(Session& session) {
  Deadline deadline = Deadline::In(options_.first_request_timeout);
  for (;;) {
    ASSIGN_OR_RETURN(const platform::Message message,
                     session.channel.Receive(deadline, &stop()));
    // Before it is looked at: who has the socket may be anybody's process.
    if (absl::Status may = CheckSpeaker(session); !may.ok()) {
      return Refuse(session, may);
    }
    if (message.type == kGoodbye && message.payload.empty()) {
      session.said_goodbye = true;
      return absl::OkStatus();
    }
    if (session.gave_up) {
      return absl::InvalidArgumentError("another word than goodbye");
    }
    if (IsGivingUp(message)) {
      GiveUp(session);
      continue;
    }
    absl::StatusOr<Request> request = DecodeRequest(message);
    // What follows of a peer that breaks the protocol cannot be told.
    if (!request.ok()) return Refuse(session, request.status());
    absl::Status served = ServeRequest(session, *request);
    if (session.gave_up) {
      GiveUp(session);
    } else if (!served.ok()) {
      return served;
    }
    deadline = absl::InfiniteFuture();
  }
}

void Server::GiveUp(Session& session) {
  session.gave_up = true;
  platform::MutexLock lock(mutex_);
  if (registry_.AbandonAll(session.client.session)) NotifyWaiters();
}

absl::Status Server::CheckSpeaker(const Session& session) {
  const platform::UserId speaker = session.channel.peer().user;
  const platform::UserId& maker = session.client.user;
  if (speaker == maker) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(
      "another user speaks over this connection than made it: ", speaker.text(),
      ", expected ", maker.text(), ". Connect anew"));
}

absl::Status Server::WatchProcess(Session& session) {
  Client& client = session.client;
  if (session.channel.peer().pid != client.pid) {
    return absl::FailedPreconditionError(
        absl::StrCat("the connection is that of process ", client.pid,
                     ", and locks are a process's. Connect anew"));
  }
  if (session.watch.has_value()) return absl::OkStatus();
  ASSIGN_OR_RETURN(
      platform::PeerWatch watch,
      platform::PeerWatch::Receive(
          session.channel, Deadline::In(options_.transfer_timeout), &stop()));
  // Whose end would be looked for otherwise?
  RETURN_IF_ERROR(CheckSpeaker(session));
  session.watch = std::move(watch);
  client.identity = session.watch->ProcessIdentity();
  return absl::OkStatus();
}

absl::Status Server::ServeRequest(Session& session, const Request& request) {
  const Client& client = session.client;
  if (MayGainLock(request.type)) {
    absl::Status watched = WatchProcess(session);
    if (!watched.ok()) return Refuse(session, watched);
  }
  RETURN_IF_ERROR(CheckIsThere(session));
  switch (request.type) {
    case kPut:
    case kReplace:
      return ServePut(session, request);
    case kAttach:
      return ServeAttach(session, request);
    case kAttachOrCreate:
      return ServeAttachOrCreate(session, request);
    case kLock:
      return ServeLock(session, request);
    case kList:
      return ServeList(session, request);
    case kSeal:
      return Answer(session, Seal(request.name, client));
    case kDrop:
      return Answer(session, Drop(request.name, client));
    default:
      break;
  }
  absl::Status outcome;
  {
    platform::MutexLock lock(mutex_);
    outcome = request.type == kUnlock ? registry_.Unlock(request.name, client)
                                      : registry_.Abandon(request.name, client);
    if (outcome.ok()) NotifyWaiters();
  }
  return Answer(session, outcome);
}

absl::Status Server::Refuse(Session& session, const absl::Status& why) {
  Answer(session, why).IgnoreError();
  return why;
}

absl::Status Server::Answer(Session& session, const absl::Status& outcome) {
  const Deadline deadline = Deadline::In(options_.transfer_timeout);
  if (outcome.ok()) {
    return session.channel.Send(kOk, {}, {}, deadline, &stop());
  }
  return protocol::SendError(session.channel,
                             static_cast<protocol::MessageType>(kError),
                             outcome, deadline, &stop());
}

absl::Status Server::SendFound(Session& session, const std::string& name,
                               const Registry::Found& found) {
  const Deadline deadline = Deadline::In(options_.transfer_timeout);
  RETURN_IF_ERROR(session.channel.Send(
      kAttached, EncodeAttached(found.attached), {}, deadline, &stop()));
  const protocol::Outgoing outgoing{
      found.content->ticket, [content = found.content](std::size_t chunk) {
        return Duplicate(content->handles[chunk]);
      }};
  absl::Status sent = protocol::SendAll(
      session.channel, absl::MakeConstSpan(&outgoing, 1), deadline, &stop());
  if (sent.ok()) {
    platform::MutexLock lock(mutex_);
    registry_.CountAttached(name, *found.content);
  }
  // Not having been able to import is the client's affair.
  return session.channel.is_open() ? absl::OkStatus() : sent;
}

absl::Status Server::ServeAttach(Session& session, const Request& request) {
  absl::StatusOr<Registry::Found> found = Registry::Found{};
  {
    platform::MutexLock lock(mutex_);
    found = registry_.Attach(request.name, request.size, request.read_write);
  }
  if (!found.ok()) return Answer(session, found.status());
  return SendFound(session, request.name, *found);
}

absl::Status Server::ServeAttachOrCreate(Session& session,
                                         const Request& request) {
  Registry::Offer offer;
  const auto attempt =
      [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) -> absl::StatusOr<bool> {
    ASSIGN_OR_RETURN(
        offer, registry_.AttachOrCreate(request, session.client, absl::Now()));
    return offer.step != Registry::Step::kWait;
  };
  absl::Status outcome;
  RETURN_IF_ERROR(Await(session, request, attempt, &outcome));
  if (!outcome.ok()) return Answer(session, outcome);
  if (offer.step == Registry::Step::kAttach) {
    return SendFound(session, request.name, offer.found);
  }
  return session.channel.Send(kCreate, {}, {},
                              Deadline::In(options_.transfer_timeout), &stop());
}

absl::Status Server::ServeLock(Session& session, const Request& request) {
  const auto attempt = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return registry_.Lock(request.name, session.client);
  };
  absl::Status outcome;
  RETURN_IF_ERROR(Await(session, request, attempt, &outcome));
  return Answer(session, outcome);
}

absl::Status Server::ServeList(Session& session, const Request& request) {
  Page page;
  {
    platform::MutexLock lock(mutex_);
    page = registry_.List(request.name, kPageSize);
  }
  page.restart_note = restart_note_;
  return session.channel.Send(kListed, EncodePage(page), {},
                              Deadline::In(options_.transfer_timeout), &stop());
}

}  // namespace vmm::keeper
