#include "vmm/lease_book.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "vmm/protocol.h"

namespace vmm {
namespace {

// How often processes are asked whether they have ended: a forked child may
// keep a connection for longer than the process that imported.
constexpr std::chrono::milliseconds kLookAgain{5};

bool IsOf(const std::optional<MemoryId>& wanted, const MemoryId& memory) {
  return !wanted.has_value() || *wanted == memory;
}

}  // namespace

absl::StatusOr<LeaseBook::Entry> LeaseBook::Add(
    const platform::Channel& channel, absl::Span<const Item> items) {
  absl::StatusOr<std::optional<platform::Process>> process =
      lease_internal::OpenHolder(channel);
  if (!process.ok()) return process.status();
  std::lock_guard<std::mutex> lock(mutex_);
  ForgetEnded();
  if (holders_.size() >= limit_) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the owner has ", holders_.size(),
        " leases out, its limit (EndpointOptions::max_leases); open several "
        "tickets with one OpenTickets(), which is one lease"));
  }
  const Entry entry{next_++};
  Holder& holder = holders_[entry];
  holder.credentials = channel.peer();
  holder.since = absl::Now();
  holder.process = *std::move(process);
  for (const Item& item : items)
    holder.held.push_back({item, std::nullopt, false});
  return entry;
}

void LeaseBook::Attach(Entry entry, platform::Channel& channel) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = holders_.find(entry);
  if (found == holders_.end()) return;
  found->second.channel = &channel;
  SendRecalls(found->second);
}

absl::StatusOr<bool> LeaseBook::Return(Entry entry,
                                       absl::Span<const MemoryId> ids) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = holders_.find(entry);
  // Its process was seen to have ended: a forked child speaks for it.
  if (found == holders_.end()) return false;
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
  changed_.notify_all();
  return !found->second.held.empty();
}

void LeaseBook::Detach(Entry entry) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = holders_.find(entry);
  if (found != holders_.end()) {
    found->second.channel = nullptr;
    found->second.hung_up = true;
  }
  ForgetEnded();
  changed_.notify_all();
}

void LeaseBook::Remove(Entry entry) {
  std::lock_guard<std::mutex> lock(mutex_);
  holders_.erase(entry);
  changed_.notify_all();
}

void LeaseBook::ForgetEnded() {
  std::erase_if(holders_, [](const auto& one) {
    const std::optional<platform::Process>& process = one.second.process;
    if (!process.has_value()) return false;
    const absl::StatusOr<bool> exited = process->HasExited();
    return exited.ok() && *exited;
  });
}

std::vector<MemoryLease> LeaseBook::ListOf(
    const std::optional<MemoryId>& memory) const {
  std::vector<MemoryLease> leases;
  for (const auto& [entry, holder] : holders_) {
    for (const Held& held : holder.held) {
      if (!IsOf(memory, held.item.memory)) continue;
      MemoryLease& one = leases.emplace_back();
      one.memory = held.item.memory;
      one.lease = {holder.credentials, held.item.size, holder.since,
                   held.return_by.has_value() ? LeaseState::kRecalled
                                              : LeaseState::kHeld,
                   held.return_by};
      if (holder.hung_up) one.lease.state = LeaseState::kQuarantined;
    }
  }
  return leases;
}

std::vector<MemoryLease> LeaseBook::List() {
  std::lock_guard<std::mutex> lock(mutex_);
  ForgetEnded();
  return ListOf(std::nullopt);
}

void LeaseBook::Recall(const std::optional<MemoryId>& memory,
                       absl::Time until) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto& [entry, holder] : holders_) {
    for (Held& held : holder.held) {
      if (!IsOf(memory, held.item.memory)) continue;
      held.return_by = until;
      held.to_send = true;
    }
    SendRecalls(holder);
  }
}

void LeaseBook::SendRecalls(Holder& holder) {
  if (holder.channel == nullptr) return;
  std::map<absl::Time, std::vector<MemoryId>> by_time;
  for (Held& held : holder.held) {
    if (!std::exchange(held.to_send, false)) continue;
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
                                          absl::Time deadline) {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    ForgetEnded();
    const std::vector<MemoryLease> leases = ListOf(memory);
    if (leases.empty()) return absl::OkStatus();
    if (absl::Now() >= deadline) {
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
    changed_.wait_for(lock, kLookAgain);
  }
}

}  // namespace vmm
