// Who has the writer lock of what is kept, and what becomes of it when a connection
// ends: see registry.h.
#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"
#include "vmm/keeper/internal/refusals.h"
#include "vmm/keeper/internal/registry.h"

namespace vmm::keeper {

bool IsSameProcess(const Client& a, const Client& b) {
  if (a.user != b.user || a.pid != b.pid) return false;
  if (a.identity != 0 && b.identity != 0) return a.identity == b.identity;
  return a.pid != 0;
}

bool Registry::TakesOver(const Entry& entry, const Client& client) {
  return entry.state == KeptState::kLocked && entry.left.has_value() &&
         entry.left->empty() && IsSameProcess(entry.holder, client);
}

void Registry::GiveLock(Entry& entry, const Client& client) {
  entry.state = KeptState::kLocked;
  entry.holder = client;
  entry.left.reset();
}

void Registry::FreeLock(Entry& entry) {
  entry.state = KeptState::kWritable;
  entry.holder = {};
  entry.left.reset();
}

absl::StatusOr<bool> Registry::Lock(const std::string& name,
                                    const Client& client) {
  Entry* entry = FindKept(name);
  if (entry == nullptr) return NotKept();
  if (entry->state == KeptState::kSealed) {
    return absl::FailedPreconditionError(
        "it is sealed: nobody is to write to it any more");
  }
  if (entry->state == KeptState::kWritable || TakesOver(*entry, client)) {
    GiveLock(*entry, client);
  }
  return entry->IsLockedBy(client.session);
}

absl::Status Registry::CheckWriter(const Entry* entry, const Client& client,
                                   absl::string_view what) {
  if (entry == nullptr) return NotKept();
  if (entry->IsLockedBy(client.session)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      what, " takes the writer lock, which this connection does not have: ",
      entry->state == KeptState::kSealed ? "it is sealed"
      : entry->state == KeptState::kLocked
          ? absl::StrCat(keeper::Describe(entry->holder), " has it")
          : "nobody has it"));
}

absl::Status Registry::Unlock(const std::string& name, const Client& client) {
  Entry* entry = FindKept(name);
  RETURN_IF_ERROR(CheckWriter(entry, client, "unlocking"));
  FreeLock(*entry);
  return absl::OkStatus();
}

std::string Registry::DescribeBusy(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) return "nobody";
  const Entry& entry = found->second;
  if (entry.content == nullptr) {
    return absl::StrCat(keeper::Describe(entry.by), ", which is creating it");
  }
  if (entry.state != KeptState::kLocked) return "nobody";
  const std::string holder = keeper::Describe(entry.holder);
  if (!entry.left.has_value()) {
    return absl::StrCat(holder, ", which has the writer lock");
  }
  if (entry.left->empty()) {
    return absl::StrCat(holder,
                        ", which has the writer lock: its connection has "
                        "ended, but the process has not");
  }
  return absl::StrCat(holder, ", which has ended with the writer lock, but ",
                      *entry.left);
}

absl::StatusOr<Saved> Registry::CheckSeal(const std::string& name,
                                          const Client& client) const {
  const Entry* entry = FindKept(name);
  RETURN_IF_ERROR(CheckWriter(entry, client, "sealing"));
  return entry->saved;
}

absl::Status Registry::Seal(const std::string& name, const Client& client) {
  Entry* entry = FindKept(name);
  RETURN_IF_ERROR(CheckWriter(entry, client, "sealing"));
  entry->state = KeptState::kSealed;
  entry->holder = {};
  return absl::OkStatus();
}

bool Registry::AbandonAll(std::uint64_t session) {
  arriving_.erase(session);
  return std::erase_if(entries_, [session](const auto& one) {
           return one.second.content == nullptr &&
                  one.second.by.session == session;
         }) > 0;
}

bool Registry::EndSession(std::uint64_t session) {
  bool changed = AbandonAll(session);
  for (auto& [name, entry] : entries_) {
    if (entry.IsLockedBy(session)) {
      FreeLock(entry);
      changed = true;
    }
  }
  return changed;
}

bool Registry::LeaveLocked(std::uint64_t session, const std::string& why) {
  AbandonAll(session);
  bool locks = false;
  for (auto& [name, entry] : entries_) {
    if (entry.IsLockedBy(session)) {
      entry.left = why;
      locks = true;
    }
  }
  return locks;
}

void Registry::PassLocks(std::uint64_t from, std::uint64_t to) {
  for (auto& [name, entry] : entries_) {
    if (entry.IsLockedBy(from)) entry.holder.session = to;
  }
}

}  // namespace vmm::keeper
