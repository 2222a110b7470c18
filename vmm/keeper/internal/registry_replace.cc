// One step from what was kept to what is kept: see registry.h.
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"
#include "vmm/keeper/internal/refusals.h"
#include "vmm/keeper/internal/registry.h"

namespace vmm::keeper {

absl::StatusOr<Saved> Registry::CheckReplace(const Request& request,
                                             const Client& client) const {
  if (!request.replaces.has_value()) {
    const auto found = entries_.find(request.name);
    if (found == entries_.end()) return Saved{};
    return Taken(found->second.by, found->second.content != nullptr);
  }
  const Entry* entry = FindKept(request.name);
  if (entry == nullptr) return NotKept();
  RETURN_IF_ERROR(CheckMayDrop(*entry, client));
  if (entry->state != KeptState::kSealed) {
    return absl::FailedPreconditionError(absl::StrCat(
        "it is not sealed: ", keeper::Describe(entry->by),
        " put it. Only what is complete is replaced: seal it, or drop it."));
  }
  if (entry->content->ticket.id != *request.replaces) {
    return absl::AbortedError(absl::StrCat(
        "it has been replaced meanwhile, by ", keeper::Describe(entry->by),
        ": attach what is there now, and begin again from that"));
  }
  // Where it could not be stored, what it replaced is there still.
  if (entry->saved.id == 0 && !entry->replaced.empty()) {
    return entry->replaced.back();
  }
  return entry->saved;
}

absl::Status Registry::BeginReplace(const Request& request,
                                    const Client& client) {
  RETURN_IF_ERROR(CheckReplace(request, client).status());
  Entry entry;
  entry.by = client;
  entry.bytes = request.ticket->layout.size;
  entry.handles = request.ticket->layout.count();
  if (request.replaces.has_value()) {
    entry.takes_name = false;
    entry.takes_name_of_user = entries_.at(request.name).by.user != client.user;
  }
  RETURN_IF_ERROR(CheckRoom("", entry));
  arriving_.insert_or_assign(client.session, std::move(entry));
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const Content>> Registry::CommitReplace(
    const Request& request, const Client& client,
    std::shared_ptr<const Content> content, Saved saved, absl::Time now) {
  const auto arriving = arriving_.find(client.session);
  if (arriving == arriving_.end()) {
    return absl::NotFoundError("the put was abandoned");
  }
  RETURN_IF_ERROR(CheckReplace(request, client).status());
  Entry& entry = entries_[request.name];
  std::shared_ptr<const Content> old = std::move(entry.content);
  if (old != nullptr) CountLeaving(entry, old);
  std::vector<Saved> replaced = std::move(entry.replaced);
  if (entry.saved.id != 0) replaced.push_back(entry.saved);
  // Memory that replaces itself is what the store has already.
  std::erase_if(replaced, [&](const Saved& one) { return one.id == saved.id; });
  entry = std::move(arriving->second);
  arriving_.erase(arriving);
  entry.takes_name = entry.takes_name_of_user = true;
  entry.state = KeptState::kSealed;
  entry.since = now;
  entry.content = std::move(content);
  entry.saved = saved;
  entry.replaced = std::move(replaced);
  return old;
}

std::vector<Saved> Registry::ReplacedBy(const std::string& name) const {
  const Entry* entry = FindKept(name);
  return entry == nullptr ? std::vector<Saved>() : entry->replaced;
}

void Registry::ForgetReplaced(const std::string& name) {
  Entry* entry = FindKept(name);
  if (entry == nullptr || entry->replaced.empty()) return;
  entry->replaced.erase(entry->replaced.begin());
}

}  // namespace vmm::keeper
