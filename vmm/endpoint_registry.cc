#include "vmm/endpoint_registry.h"

#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"

namespace vmm {
namespace {

absl::StatusOr<ExportedHandle> Copy(const ExportedHandle& handle) {
  if (const auto* bytes = std::get_if<fabric::Handle>(&handle)) return *bytes;
  absl::StatusOr<platform::OsHandle> duplicate =
      platform::Duplicate(std::get<platform::OsHandle>(handle));
  if (!duplicate.ok()) return duplicate.status();
  return *std::move(duplicate);
}

}  // namespace

absl::Status EndpointRegistry::Add(const Ticket& ticket,
                                   std::vector<ExportedHandle> handles) {
  auto entry = std::make_shared<const Entry>(Entry{ticket, std::move(handles)});
  std::lock_guard<std::mutex> lock(mutex_);
  if (!entries_.emplace(ticket.id, std::move(entry)).second) {
    return absl::AlreadyExistsError(absl::StrCat(
        ticket.Describe(),
        " is published at this endpoint already; use that ticket"));
  }
  return absl::OkStatus();
}

void EndpointRegistry::Remove(const MemoryId& id) {
  std::shared_ptr<const Entry> removed;  // Closed after the lock is gone.
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = entries_.find(id);
  if (found == entries_.end()) return;
  removed = std::move(found->second);
  entries_.erase(found);
}

absl::StatusOr<std::vector<protocol::Outgoing>> EndpointRegistry::Find(
    absl::Span<const MemoryId> ids) const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<protocol::Outgoing> outgoing;
  outgoing.reserve(ids.size());
  for (const MemoryId& id : ids) {
    auto found = entries_.find(id);
    if (found == entries_.end()) {
      return absl::NotFoundError(absl::StrCat(
          "memory ", id.ToString(),
          " is not published here: it was withdrawn, or the owner has "
          "restarted. Ask the owner for a new ticket."));
    }
    std::shared_ptr<const Entry> entry = found->second;
    outgoing.push_back({entry->ticket, [entry](std::size_t chunk) {
                          return Copy(entry->handles[chunk]);
                        }});
  }
  return outgoing;
}

absl::Status EndpointRegistry::AddPool(const DomainId& domain,
                                       std::shared_ptr<pool::Core> pool) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!pools_.emplace(domain, std::move(pool)).second) {
    return absl::AlreadyExistsError(
        "this sharing domain is served at this endpoint already; use that "
        "ticket");
  }
  return absl::OkStatus();
}

void EndpointRegistry::RemovePool(const DomainId& domain) {
  std::shared_ptr<pool::Core> removed;  // Ends after the lock is gone.
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = pools_.find(domain);
  if (found == pools_.end()) return;
  removed = std::move(found->second);
  pools_.erase(found);
}

absl::StatusOr<std::shared_ptr<pool::Core>> EndpointRegistry::FindPool(
    const DomainId& domain) const {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = pools_.find(domain);
  if (found == pools_.end()) {
    return absl::NotFoundError(absl::StrCat(
        "sharing domain ", domain.ToString(),
        " is not served here: it was withdrawn, or the owner has restarted. "
        "Ask the owner for a new ticket."));
  }
  return found->second;
}

}  // namespace vmm
