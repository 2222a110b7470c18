#include "vmm/share/internal/lease_book.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "platform/base/annotate.h"
#include "platform/base/status_macros.h"
#include "vmm/share/internal/lease_text.h"
#include "vmm/share/internal/protocol.h"

namespace vmm {
namespace {

// How often processes are asked whether they have ended: a forked child may
// keep a connection for longer than the process that imported.
constexpr std::chrono::milliseconds kLookAgain{5};

bool IsOf(const std::optional<MemoryId>& wanted, const MemoryId& memory) {
  return !wanted.has_value() || *wanted == memory;
}

}  // namespace

absl::StatusOr<LeaseBook::Entry> LeaseBook::Add(platform::PeerCredentials peer,
                                                platform::PeerWatch watch,
                                                absl::Span<const Item> items) {
  platform::MutexLock lock(mutex_);
  ForgetEnded();
  PeerTally tally(peer);
  for (const auto& [entry, holder] : holders_) tally.Count(holder.credentials);
  RETURN_IF_ERROR(platform::Annotate(
      tally.Check(limits_, "the owner", "leases"), "",
      "Raise max_leases where it is served: in C++ EndpointOptions::max_leases "
      "or its like, in C vmmshare_server_options::max_leases, in Python "
      "vmmshare.Server(max_leases=). Or share blocks of a pool, whose importer "
      "has no lease here; from C++ OpenTickets() opens several for one lease"));
  const Entry entry{next_++};
  Holder& holder = holders_
                       .emplace(entry, Holder{std::move(peer), absl::Now(),
                                              std::move(watch)})
                       .first->second;
  for (const Item& item : items) holder.held.push_back({item, {}, {}});
  return entry;
}

void LeaseBook::Attach(Entry entry, platform::Channel& channel) {
  platform::MutexLock lock(mutex_);
  Holder& holder = holders_.find(entry)->second;
  holder.channel = &channel;
  SendRecalls(holder);
}

absl::StatusOr<bool> LeaseBook::Return(Entry entry,
                                       absl::Span<const MemoryId> ids) {
  platform::MutexLock lock(mutex_);
  const auto found = holders_.find(entry);
  // Whoever speaks for a process that has ended holds nothing by it.
  if (found->second.end == platform::PeerEnd::kProven) return false;
  std::vector<Held> left = found->second.held;
  for (const MemoryId& id : ids) {
    const auto returned =
        std::find_if(left.begin(), left.end(),
                     [&](const Held& one) { return one.item.memory == id; });
    if (returned == left.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "memory ", id.ToString(), " was returned by process ",
          found->second.credentials.pid, ", which does not hold it"));
    }
    left.erase(returned);
  }
  found->second.held = std::move(left);
  changed_.NotifyAll();
  return !found->second.held.empty();
}

void LeaseBook::Detach(Entry entry) {
  platform::MutexLock lock(mutex_);
  Holder& holder = holders_.find(entry)->second;
  holder.channel = nullptr;
  holder.hung_up = true;
  ForgetEnded();
  changed_.NotifyAll();
}

void LeaseBook::Remove(Entry entry) {
  platform::MutexLock lock(mutex_);
  holders_.erase(entry);
  changed_.NotifyAll();
}

bool LeaseBook::HasEnded(Entry entry) {
  platform::MutexLock lock(mutex_);
  Holder& holder = holders_.find(entry)->second;
  holder.end = holder.watch.Look();
  return holder.end == platform::PeerEnd::kProven;
}

bool LeaseBook::Tidy() {
  platform::MutexLock lock(mutex_);
  ForgetEnded();
  return std::any_of(holders_.begin(), holders_.end(),
                     [](const auto& one) { return one.second.hung_up; });
}

void LeaseBook::ForgetEnded() {
  for (auto& [entry, holder] : holders_) holder.end = holder.watch.Look();
  // A session counts as long as it stands.
  std::erase_if(holders_, [](const auto& one) {
    return one.second.hung_up && one.second.end == platform::PeerEnd::kProven;
  });
}

std::vector<MemoryLease> LeaseBook::ListOf(
    const std::optional<MemoryId>& memory) const {
  std::vector<MemoryLease> leases;
  for (const auto& [entry, holder] : holders_) {
    if (holder.end == platform::PeerEnd::kProven) continue;
    for (const Held& held : holder.held) {
      if (!IsOf(memory, held.item.memory)) continue;
      MemoryLease& one = leases.emplace_back();
      one.memory = held.item.memory;
      one.lease = {.holder = holder.credentials,
                   .size = held.item.size,
                   .since = holder.since,
                   .return_by = held.return_by};
      lease_internal::SetState(one.lease, holder.hung_up, holder.end,
                               holder.watch);
    }
  }
  return leases;
}

std::vector<MemoryLease> LeaseBook::List() {
  platform::MutexLock lock(mutex_);
  ForgetEnded();
  return ListOf(std::nullopt);
}

void LeaseBook::Recall(const std::optional<MemoryId>& memory,
                       absl::Time until) {
  platform::MutexLock lock(mutex_);
  for (auto& [entry, holder] : holders_) {
    for (Held& held : holder.held) {
      if (!IsOf(memory, held.item.memory)) continue;
      held.return_by = until;
    }
    SendRecalls(holder);
  }
}

void LeaseBook::SendRecalls(Holder& holder) {
  if (holder.channel == nullptr) return;
  std::map<absl::Time, std::vector<MemoryId>> by_time;
  for (Held& held : holder.held) {
    if (!held.MustBeTold()) continue;
    held.told = held.return_by;
    by_time[*held.return_by].push_back(held.item.memory);
  }
  for (const auto& [until, ids] : by_time) {
    // Who asks waits for nobody: a peer that does not read is disconnected,
    // which the thread that receives from it finds out.
    protocol::SendRecall(*holder.channel, ids, until - absl::Now(),
                         absl::InfinitePast())
        .IgnoreError();
  }
}

absl::Status LeaseBook::WaitUntilReturned(const std::optional<MemoryId>& memory,
                                          Deadline deadline) {
  platform::MutexLock lock(mutex_);
  for (;;) {
    ForgetEnded();
    const std::vector<MemoryLease> leases = ListOf(memory);
    if (leases.empty()) return absl::OkStatus();
    if (deadline.Passed()) {
      std::vector<std::string> each;
      each.reserve(leases.size());
      for (const MemoryLease& one : leases) {
        each.push_back(absl::StrCat("memory ", one.memory.ToString(), ", ",
                                    one.lease.Describe()));
      }
      return absl::DeadlineExceededError(
          absl::StrCat(lease_internal::DescribeAll(each),
                       ". Recall them, or end the processes that hold them"));
    }
    changed_.WaitFor(mutex_, kLookAgain);
  }
}

}  // namespace vmm
