#include "vmm/keeper/internal/registry.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"
#include "vmm/keeper/internal/refusals.h"

namespace vmm::keeper {

const Registry::Entry* Registry::FindKept(const std::string& name) const {
  const auto found = entries_.find(name);
  return found == entries_.end() || found->second.content == nullptr
             ? nullptr
             : &found->second;
}

Registry::Entry* Registry::FindKept(const std::string& name) {
  return const_cast<Entry*>(std::as_const(*this).FindKept(name));
}

absl::Status Registry::BeginPut(const std::string& name, const Client& client,
                                const Ticket& ticket, absl::Time now) {
  const auto found = entries_.find(name);
  if (found != entries_.end()) {
    const Entry& entry = found->second;
    const bool own = entry.content == nullptr && !entry.arriving &&
                     entry.by.session == client.session;
    if (!own) return Taken(entry.by, entry.content != nullptr);
  }
  Entry entry;
  entry.arriving = true;
  entry.by = client;
  entry.since = now;
  entry.bytes = ticket.layout.size;
  entry.handles = ticket.layout.count();
  RETURN_IF_ERROR(CheckRoom(name, entry));
  entries_.insert_or_assign(name, std::move(entry));
  return absl::OkStatus();
}

absl::Status Registry::CommitPut(const std::string& name, const Client& client,
                                 std::shared_ptr<const Content> content,
                                 Saved saved, absl::Time now) {
  const auto found = entries_.find(name);
  if (found == entries_.end() || !found->second.arriving ||
      found->second.by.session != client.session) {
    return absl::NotFoundError("the put was abandoned");
  }
  Entry& entry = found->second;
  entry.arriving = false;
  GiveLock(entry, client);
  entry.since = now;
  entry.content = std::move(content);
  entry.saved = saved;
  return absl::OkStatus();
}

absl::Status Registry::Abandon(const std::string& name, const Client& client) {
  const auto found = entries_.find(name);
  if (found == entries_.end() || found->second.content != nullptr ||
      found->second.by.session != client.session) {
    return absl::FailedPreconditionError(
        "this connection has not reserved the name");
  }
  entries_.erase(found);
  return absl::OkStatus();
}

absl::Status Registry::Restore(const std::string& name,
                               const platform::UserId& user, std::int64_t pid,
                               absl::Time since, bool sealed,
                               std::shared_ptr<const Content> content,
                               Saved saved, std::vector<Saved> replaced) {
  Entry entry;
  entry.state = sealed ? KeptState::kSealed : KeptState::kWritable;
  entry.by = {0, user, pid};
  entry.since = since;
  entry.bytes = content->ticket.layout.size;
  entry.handles = content->ticket.layout.count();
  entry.content = std::move(content);
  entry.saved = saved;
  entry.replaced = std::move(replaced);
  if (!entries_.emplace(name, std::move(entry)).second) {
    return absl::AlreadyExistsError("two entries have the same name");
  }
  return absl::OkStatus();
}

absl::Status Registry::CheckFits(const Entry& entry, std::uint64_t size,
                                 bool read_write) {
  const std::uint64_t kept = entry.content->ticket.requested_size;
  if (size != 0 && size != kept) {
    return absl::FailedPreconditionError(
        absl::StrCat("what is kept has ", kept, " bytes; expected ", size,
                     ". It was put by ", keeper::Describe(entry.by),
                     "; drop it if it is out of date."));
  }
  if (read_write && entry.state == KeptState::kSealed) {
    return absl::FailedPreconditionError(
        "it is sealed and mapped read-only from now on: ask for reading only");
  }
  return absl::OkStatus();
}

absl::StatusOr<Registry::Found> Registry::Attach(const std::string& name,
                                                 std::uint64_t size,
                                                 bool read_write) {
  const Entry* entry = FindKept(name);
  if (entry == nullptr) return NotKept();
  RETURN_IF_ERROR(CheckFits(*entry, size, read_write));
  return Found{entry->content, {.sealed = entry->state == KeptState::kSealed}};
}

void Registry::CountAttached(const std::string& name, const Content& content) {
  Entry* entry = FindKept(name);
  // Dropped meanwhile, or even put anew.
  if (entry != nullptr && entry->content.get() == &content) ++entry->attached;
}

absl::StatusOr<Registry::Offer> Registry::AttachOrCreate(const Request& request,
                                                         const Client& client,
                                                         absl::Time now) {
  const auto found = entries_.find(request.name);
  if (found == entries_.end()) {
    Entry entry;
    entry.by = client;
    entry.since = now;
    entry.bytes = request.size;
    entry.handles = 1;
    RETURN_IF_ERROR(CheckRoom(request.name, entry));
    entries_.emplace(request.name, std::move(entry));
    return Offer{Step::kCreate, {}};
  }
  Entry& entry = found->second;
  if (entry.content == nullptr) {
    if (entry.by.session == client.session) {
      return absl::FailedPreconditionError(
          "this connection is creating it: put it, or abandon it");
    }
    return Offer{Step::kWait, {}};
  }
  RETURN_IF_ERROR(CheckFits(entry, request.size, request.read_write));
  Found answer{entry.content, {.sealed = entry.state == KeptState::kSealed}};
  if (!request.until_sealed || answer.attached.sealed) {
    return Offer{Step::kAttach, std::move(answer)};
  }
  if (entry.state == KeptState::kWritable || TakesOver(entry, client)) {
    // Nobody is going to seal it: its writer has ended, or has let go.
    GiveLock(entry, client);
    answer.attached.taken_over = true;
    return Offer{Step::kAttach, std::move(answer)};
  }
  if (entry.IsLockedBy(client.session)) {
    return absl::FailedPreconditionError(
        "this connection is its writer, and would wait for itself: seal it");
  }
  return Offer{Step::kWait, {}};
}

absl::StatusOr<Saved> Registry::CheckDrop(const std::string& name,
                                          const Client& client) const {
  const Entry* entry = FindKept(name);
  if (entry == nullptr) return NotKept();
  RETURN_IF_ERROR(CheckMayDrop(*entry, client));
  return entry->saved;
}

absl::Status Registry::CheckMayDrop(const Entry& entry,
                                    const Client& client) const {
  if (client.user == entry.by.user || client.user == keeper_) {
    return absl::OkStatus();
  }
  return absl::PermissionDeniedError(absl::StrCat(
      "user ", entry.by.user.text(),
      " put it; only that user and the keeper's own, ", keeper_.text(),
      ", may drop it, not user ", client.user.text()));
}

absl::StatusOr<std::shared_ptr<const Content>> Registry::Drop(
    const std::string& name, const Client& client) {
  RETURN_IF_ERROR(CheckDrop(name, client).status());
  const auto found = entries_.find(name);
  std::shared_ptr<const Content> content = std::move(found->second.content);
  CountLeaving(found->second, content);
  entries_.erase(found);
  return content;
}

void Registry::Doubt(const std::string& name) {
  Entry* entry = FindKept(name);
  if (entry != nullptr) entry->saved.in_doubt = true;
}

KeptMemory Registry::Describe(const std::string& name, const Entry& entry) {
  KeptMemory memory;
  memory.name = name;
  memory.state = entry.state;
  memory.user = entry.by.user;
  memory.pid = entry.by.pid;
  memory.holder = entry.holder.user;
  memory.holder_pid = entry.holder.pid;
  // As it travels.
  memory.since = absl::FromUnixMicros(absl::ToUnixMicros(entry.since));
  memory.attached = entry.attached;
  memory.survives_restart = entry.saved.survives();
  if (entry.content != nullptr) {
    const Ticket& ticket = entry.content->ticket;
    memory.size = ticket.requested_size;
    memory.allocated_size = ticket.layout.size;
    memory.chunks = static_cast<std::uint32_t>(ticket.layout.count());
    memory.kind = ticket.kind;
    memory.device = ticket.device;
    memory.host_numa_node = ticket.host_numa_node;
  }
  return memory;
}

Page Registry::List(const std::string& name, std::size_t count) const {
  Page page;
  auto at = entries_.upper_bound(name);
  for (; at != entries_.end() && page.memory.size() < count; ++at) {
    page.memory.push_back(Describe(at->first, at->second));
  }
  page.more = at != entries_.end();
  return page;
}

std::optional<KeptMemory> Registry::Find(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) return std::nullopt;
  return Describe(name, found->second);
}

}  // namespace vmm::keeper
