// How memory comes to be kept, is sealed, and goes: what changes the store and the
// registry together. See server.h.
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "platform/base/status_macros.h"
#include "vmm/keeper/internal/server.h"
#include "vmm/share/internal/protocol.h"

namespace vmm::keeper {
namespace {

std::string NotStored(const Content& content, const Client& client,
                      absl::string_view why) {
  return absl::StrCat("memory of ", content.ticket.layout.size,
                      " bytes put by process ", client.pid,
                      " will not survive a restart: ", why);
}

absl::Status CheckIsAnnounced(const Ticket& came, const Ticket& announced) {
  if (came == announced) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the memory that came is not the memory that was announced: ",
      came.layout.size, " bytes in ", came.layout.count(),
      " chunks; expected the ticket of the request, with ",
      announced.layout.size, " bytes in ", announced.layout.count(),
      " chunks"));
}

}  // namespace

absl::Status Server::ServePut(Session& session, const Request& request) {
  const Client& client = session.client;
  absl::Status begun = CheckTicketIsOfHere(*request.ticket);
  if (begun.ok()) {
    platform::MutexLock lock(mutex_);
    begun = request.type == kReplace
                ? registry_.BeginReplace(request, client)
                : registry_.BeginPut(request.name, client, *request.ticket,
                                     absl::Now());
  }
  absl::Status answered = Answer(session, begun);
  if (!begun.ok() || !answered.ok()) return answered;
  // What Keep() has kept stays, whatever came behind it.
  const auto give_up = [&] {
    platform::MutexLock lock(mutex_);
    if (request.type == kReplace) {
      registry_.AbandonReplace(client);
    } else if (registry_.Abandon(request.name, client).ok()) {
      NotifyWaiters();
    }
  };
  bool came = false;
  bool in_step = true;
  // Each part is somebody's word: all of them are one process's.
  const std::uint64_t speakers = session.channel.speakers();
  const auto is_of_client = [&]() -> absl::Status {
    RETURN_IF_ERROR(CheckSpeaker(session));
    if (session.channel.speakers() == speakers) return absl::OkStatus();
    return absl::FailedPreconditionError(
        "another process spoke in the middle of the put than asked for it. "
        "Connect anew");
  };
  absl::StatusOr<std::size_t> count = protocol::TryReceiveAll(
      session.channel,
      [&](protocol::Incoming incoming) -> absl::Status {
        came = true;
        absl::Status kept = is_of_client();
        if (kept.ok()) {
          kept =
              Keep(request, client,
                   {std::move(incoming.ticket), std::move(incoming.handles)});
        }
        // Before the client is told: the name is free when it hears so.
        if (!kept.ok()) give_up();
        return kept;
      },
      Deadline::In(options_.transfer_timeout), &in_step, &stop(), 1,
      // Before its handles are held: room was taken for those announced.
      [&](const Ticket& ticket) {
        return CheckIsAnnounced(ticket, *request.ticket);
      });
  if (!count.ok()) give_up();
  if (!in_step) {
    if (absl::IsInvalidArgument(count.status())) {
      protocol::SendError(session.channel, protocol::kRefused, count.status(),
                          Deadline::In(options_.transfer_timeout), &stop())
          .IgnoreError();  // The error below is the one that matters.
    }
    session.channel.Close();
  }
  // Also of one that gave up in the client's place, or was refused.
  if (session.channel.is_open()) RETURN_IF_ERROR(is_of_client());
  // The client was told by the exchange, and may go on; but not one that never
  // began it.
  const bool silent = !came && (absl::IsDeadlineExceeded(count.status()) ||
                                absl::IsCancelled(count.status()));
  return session.channel.is_open() && !silent ? absl::OkStatus()
                                              : count.status();
}

absl::Status Server::Keep(const Request& request, const Client& client,
                          Content content) {
  for (std::size_t i = 0; i < content.handles.size(); ++i) {
    RETURN_IF_ERROR(CheckHandle(content.ticket, i, content.handles[i]));
  }
  const auto kept = std::make_shared<const Content>(std::move(content));
  if (request.type == kReplace) return Replace(request, client, kept);
  const absl::Time now = absl::Now();
  std::string why_not;
  platform::MutexLock change(change_mutex_);
  const Saved saved =
      store_.Save(request.name, client, *kept, now, {}, &why_not);
  if (!why_not.empty()) options_.log(NotStored(*kept, client, why_not));
  absl::Status committed;
  {
    platform::MutexLock lock(mutex_);
    committed = registry_.CommitPut(request.name, client, kept, saved, now);
    if (committed.ok()) NotifyWaiters();
  }
  if (!committed.ok()) {
    // Or it would be there after a restart, under no name until then.
    LogUnlessOk(store_.Remove(saved));
  }
  return committed;
}

absl::Status Server::Replace(const Request& request, const Client& client,
                             std::shared_ptr<const Content> content) {
  const absl::Time now = absl::Now();
  // Its handles are closed after the locks are gone.
  absl::StatusOr<std::shared_ptr<const Content>> old = nullptr;
  platform::MutexLock change(change_mutex_);
  absl::StatusOr<Saved> allowed = Saved{};
  {
    platform::MutexLock lock(mutex_);
    allowed = registry_.CheckReplace(request, client);
  }
  if (!allowed.ok()) return allowed.status();
  std::string why_not;
  const Saved saved =
      store_.Save(request.name, client, *content, now,
                  {.sealed = true, .replaces = *allowed}, &why_not);
  if (!why_not.empty()) options_.log(NotStored(*content, client, why_not));
  {
    platform::MutexLock lock(mutex_);
    old = registry_.CommitReplace(request, client, std::move(content), saved,
                                  now);
    if (old.ok()) NotifyWaiters();
  }
  // Of the two, what is no more. Memory that was to replace itself is there.
  if (old.ok()) {
    LogUnlessOk(RemoveReplaced(request.name));
  } else if (saved.id != allowed->id) {
    LogUnlessOk(store_.Remove(saved));
  }
  return old.status();
}

absl::Status Server::RemoveReplaced(const std::string& name) {
  std::vector<Saved> replaced;
  {
    platform::MutexLock lock(mutex_);
    replaced = registry_.ReplacedBy(name);
  }
  // In their order: each record says what it replaces.
  for (const Saved& one : replaced) {
    RETURN_IF_ERROR(store_.Remove(one));
    platform::MutexLock lock(mutex_);
    registry_.ForgetReplaced(name);
  }
  return absl::OkStatus();
}

absl::Status Server::Seal(const std::string& name, const Client& client) {
  platform::MutexLock change(change_mutex_);
  absl::StatusOr<Saved> saved = Saved{};
  {
    platform::MutexLock lock(mutex_);
    saved = registry_.CheckSeal(name, client);
  }
  if (!saved.ok()) return saved.status();
  // First in the store: what was answered is so after a restart, too.
  RETURN_IF_ERROR(store_.Seal(*saved));
  platform::MutexLock lock(mutex_);
  absl::Status sealed = registry_.Seal(name, client);
  if (sealed.ok()) NotifyWaiters();
  return sealed;
}

absl::Status Server::Drop(const std::string& name, const Client& client) {
  platform::MutexLock change(change_mutex_);
  absl::StatusOr<Saved> saved = Saved{};
  {
    platform::MutexLock lock(mutex_);
    saved = registry_.CheckDrop(name, client);
  }
  if (!saved.ok()) return saved.status();
  RETURN_IF_ERROR(RemoveReplaced(name));
  if (absl::Status removed = store_.Remove(*saved); !removed.ok()) {
    platform::MutexLock lock(mutex_);
    registry_.Doubt(name);
    return removed;
  }
  // Its handles are closed after the lock is gone.
  absl::StatusOr<std::shared_ptr<const Content>> content = nullptr;
  platform::MutexLock lock(mutex_);
  content = registry_.Drop(name, client);
  if (content.ok()) NotifyWaiters();
  return content.status();
}

}  // namespace vmm::keeper
