#include "vmm/tool/keep.h"

#include <cstdint>
#include <cstdio>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "platform/base/mutex.h"
#include "platform/base/status_macros.h"
#include "platform/os/service_manager.h"
#include "platform/os/standard_streams.h"
#include "platform/os/termination.h"
#include "vmm/keeper/internal/server.h"
#include "vmm/tool/command_line.h"
#include "vmm/tool/say.h"

namespace vmm::tool {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(10);

// What the keeper says while it serves: its clients are never kept waiting for
// somebody to read it, and it ends when it is told to all the same.
class Log {
 public:
  void Add(absl::string_view line) {
    const platform::MutexLock lock(mutex_);
    if (dropped_ != 0 &&
        Write(absl::StrCat(dropped_,
                           " lines before this were dropped: nobody "
                           "read them"))) {
      dropped_ = 0;
    }
    if (dropped_ != 0 || !Write(line)) ++dropped_;
  }

 private:
  static bool Write(absl::string_view line) {
    return platform::WriteWithoutWaiting(
               stderr, absl::StrCat("vmmshare keep: ", line, "\n")) ==
           platform::Written::kWhole;
  }

  platform::Mutex mutex_;
  std::uint64_t dropped_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Says it to a reader who may be slow. CANCELLED once this process was asked to
// end meanwhile; DEADLINE_EXCEEDED when nobody reads, UNAVAILABLE when it cannot
// be written. REQUIRES: platform::HoldTermination(), after which a write that
// waits could not be ended.
absl::Status SayUnlessEnded(std::FILE* to, absl::string_view text,
                            Deadline deadline) {
  for (;;) {
    switch (platform::WriteWithoutWaiting(to, text)) {
      case platform::Written::kWhole:
        return absl::OkStatus();
      case platform::Written::kFailed:
        return absl::UnavailableError("it cannot be written to");
      case platform::Written::kNotYet:
        break;
    }
    if (deadline.Passed()) {
      return absl::DeadlineExceededError("nobody has read from it so far");
    }
    if (platform::WaitForTermination(Deadline::In(absl::Milliseconds(100)))
            .ok()) {
      return absl::CancelledError("this process was asked to end");
    }
  }
}

int FailUnlessEnded(const absl::Status& status) {
  SayUnlessEnded(stderr, ErrorLine(status.message()), Deadline::In(kPatience))
      .IgnoreError();  // Told to whom?
  return kExitNotUsable;
}

// OK also where nobody could be told; CANCELLED as above.
absl::Status SayWhereItServes(const std::string& address, Log& log) {
  const std::string line = absl::StrCat(address, "\n");
  absl::Status said = SayUnlessEnded(stdout, line, Deadline::In(kPatience));
  if (said.ok() || absl::IsCancelled(said)) return said;
  log.Add(
      absl::StrCat("it serves at ", address,
                   ", which standard output was not told: ", said.message()));
  if (!absl::IsDeadlineExceeded(said)) return absl::OkStatus();
  // A reader may come yet.
  said = SayUnlessEnded(stdout, line, absl::InfiniteFuture());
  return absl::IsCancelled(said) ? said : absl::OkStatus();
}

int Serve(const KeepOptions& options) {
  // Before anything else opens a descriptor, or starts a thread.
  platform::StoredHandles stored = platform::TakeStoredHandles();
  platform::HoldTermination();
  Log log;
  absl::StatusOr<std::unique_ptr<keeper::Server>> server =
      keeper::Server::Start(
          {.address = options.address,
           .peers = {.also_allowed = options.allowed},
           .limits = options.limits,
           .max_sessions = options.max_connections,
           .log = [&log](const std::string& line) { log.Add(line); }},
          platform::ServiceManager::Find(), std::move(stored));
  if (!server.ok()) return FailUnlessEnded(server.status());
  if (!(*server)->restart_note().empty()) log.Add((*server)->restart_note());
  if (!SayWhereItServes((*server)->address(), log).ok()) return kExitGood;
  absl::Status asked = platform::WaitForTermination(absl::InfiniteFuture());
  return asked.ok() ? kExitGood : FailUnlessEnded(asked);
}

absl::Status Ask(const KeepOptions& options) {
  const Deadline deadline = Deadline::In(kPatience);
  ASSIGN_OR_RETURN(
      KeeperClient client,
      KeeperClient::Connect({.address = options.address,
                             .keepers = {.also_allowed = options.allowed}},
                            deadline));
  if (options.drop.has_value()) return client.Drop(*options.drop, deadline);
  ASSIGN_OR_RETURN(const KeeperListing listing, client.List(deadline));
  return Say(stdout, options.json ? AsJson(listing)
                                  : AsText(listing, absl::LocalTimeZone()))
             ? absl::OkStatus()
             : absl::UnknownError("the listing could not be written");
}

std::string StateOf(const KeptMemory& memory) {
  std::string text(NameOf(memory.state));
  if (memory.state == KeptState::kLocked) {
    absl::StrAppend(&text, " by process ", memory.holder_pid, " of user ",
                    memory.holder.text());
  }
  return text;
}

std::string PlaceOf(const KeptMemory& memory) {
  return memory.host_numa_node.has_value()
             ? absl::StrCat("host NUMA node ", *memory.host_numa_node)
             : memory.device.ToString();
}

}  // namespace

std::string AsText(const KeeperListing& listing, absl::TimeZone zone) {
  std::string text;
  if (listing.memory.empty()) text = "nothing is kept\n";
  for (const KeptMemory& memory : listing.memory) {
    absl::StrAppendFormat(
        &text, "%s\n  %s\n  %s %s by process %d of user %s\n", memory.name,
        StateOf(memory),
        memory.state == KeptState::kReserved ? "reserved" : "put",
        absl::FormatTime("%Y-%m-%d %H:%M:%S %z", memory.since, zone),
        memory.pid, memory.user.text());
    if (memory.state == KeptState::kReserved) continue;
    absl::StrAppendFormat(&text,
                          "  %d bytes (%d held in %d chunks) of %s, as %s\n",
                          memory.size, memory.allocated_size, memory.chunks,
                          PlaceOf(memory), NameOf(memory.kind));
    absl::StrAppendFormat(
        &text, "  attached %d times%s%s\n", memory.attached,
        memory.survives_restart ? "; survives a restart of the keeper" : "",
        memory.outlives_creator() ? ""
                                  : "; ends with the process that created it");
  }
  if (!listing.restart_note.empty()) {
    absl::StrAppend(&text, listing.restart_note, "\n");
  }
  return text;
}

int Keep(const KeepOptions& options) {
  if (!options.list && !options.drop.has_value()) return Serve(options);
  absl::Status asked = Ask(options);
  return asked.ok() ? kExitGood : Fail(asked.message());
}

}  // namespace vmm::tool
