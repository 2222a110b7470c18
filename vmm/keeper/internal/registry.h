// What a keeper keeps under which name, and who may do what with it: the rules
// of `vmmshare keep` without any input or output; internal to vmm/.
//
//            Reserve            BeginPut          CommitPut
//   (none) ----------> reserved ---------> arriving --------> kept, locked
//      ^                  |                   |                |   ^  |
//      +------------------+-------------------+         Unlock |   |  | Seal
//        Abandon, EndSession                                   v   |  v
//                                                      kept   Lock   sealed
//
// CommitReplace leads from (none) or sealed to sealed in one step: whoever asks
// has what was there before, or what is there now. Drop leads from every kept
// state back to (none). EndSession abandons what its session had reserved and
// unlocks what it had locked. LeaveLocked, after a hang-up of a process that may
// still write, only abandons.
//
// Messages go to peers, so they name no memory: a peer knows what it asked for.
#ifndef VMMSHARE_VMM_KEEPER_INTERNAL_REGISTRY_H_
#define VMMSHARE_VMM_KEEPER_INTERNAL_REGISTRY_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "platform/os/process.h"
#include "vmm/keeper/internal/content.h"
#include "vmm/keeper/internal/protocol.h"
#include "vmm/keeper/keeper.h"
#include "vmm/share/ticket.h"

namespace vmm::keeper {

// Who asks: one connection.
struct Client {
  std::uint64_t session = 0;  // Never used again for another connection.
  platform::UserId user;
  std::int64_t pid = 0;  // 0 in a hidden namespace.
  // Of its process: platform::Process::Identity(). Known once it may have a lock.
  std::uint64_t identity = 0;
};

// Whether both are known to be of one process. By the ids alone it may have ended,
// and another have its id.
bool IsSameProcess(const Client& a, const Client& b);

// Of all clients together, and of one user. 0: no limit.
struct Limits {
  std::uint64_t names = 1024;
  std::uint64_t bytes = 0;
  std::uint64_t handles = 0;
  std::uint64_t user_names = 0;
  std::uint64_t user_bytes = 0;
  std::uint64_t user_handles = 0;
};

// What the store (store.h) calls an entry.
struct Saved {
  std::uint64_t id = 0;  // 0: nothing of it is stored.
  // The store has said neither that it has it nor that it has not: it does not
  // count as stored, and has to be removed all the same.
  bool in_doubt = false;
  bool survives() const { return id != 0 && !in_doubt; }
  friend bool operator==(const Saved&, const Saved&) = default;
};

// Thread-compatible.
class Registry {
 public:
  Registry(const Limits& limits, platform::UserId keeper)
      : limits_(limits), keeper_(std::move(keeper)) {}

  // A put of what `ticket` describes is about to begin: takes the room for it.
  // Also of a name that this client has reserved.
  absl::Status BeginPut(const std::string& name, const Client& client,
                        const Ticket& ticket, absl::Time now);
  // It has come. NOT_FOUND when it was abandoned meanwhile.
  absl::Status CommitPut(const std::string& name, const Client& client,
                         std::shared_ptr<const Content> content, Saved saved,
                         absl::Time now);
  // Replacing. What comes is complete, and sealed from the moment it is there. It
  // takes the place of the sealed memory `request.replaces`; if that is none, the
  // name must be free. ABORTED when something else is kept by now.
  //
  // Takes the room for it, beside what is there. It counts for a name only if it
  // replaces nothing; among those of its user also if it replaces another user's.
  absl::Status BeginReplace(const Request& request, const Client& client);
  // Whether it may be put there, and what the store calls the old one.
  absl::StatusOr<Saved> CheckReplace(const Request& request,
                                     const Client& client) const;
  // It is there. Returns the old one, for the caller to let go of. `saved` is what
  // CheckReplace() said where the store has the new one already: memory that
  // replaces itself.
  absl::StatusOr<std::shared_ptr<const Content>> CommitReplace(
      const Request& request, const Client& client,
      std::shared_ptr<const Content> content, Saved saved, absl::Time now);
  // What `name` has replaced and the store may still have, the oldest first. The
  // store has to remove these before it removes what is kept now: or they would be
  // back after a restart.
  std::vector<Saved> ReplacedBy(const std::string& name) const;
  // The store has removed the oldest of them.
  void ForgetReplaced(const std::string& name);
  void AbandonReplace(const Client& client) { arriving_.erase(client.session); }
  // A reservation or a put that failed. FAILED_PRECONDITION when this client
  // has none.
  absl::Status Abandon(const std::string& name, const Client& client);

  // What was kept before the keeper restarted: no limit refuses it. Nobody has
  // the lock. `replaced`: see ReplacedBy(). ALREADY_EXISTS.
  absl::Status Restore(const std::string& name, const platform::UserId& user,
                       std::int64_t pid, absl::Time since, bool sealed,
                       std::shared_ptr<const Content> content, Saved saved,
                       std::vector<Saved> replaced = {});

  struct Found {
    std::shared_ptr<const Content> content;
    Attached attached;
  };
  absl::StatusOr<Found> Attach(const std::string& name, std::uint64_t size,
                               bool read_write);
  // One more client has it.
  void CountAttached(const std::string& name, const Content& content);

  enum class Step { kAttach, kCreate, kWait };
  struct Offer {
    Step step = Step::kWait;
    Found found;  // With kAttach.
  };
  // `request` is a kAttachOrCreate. kCreate: the name is reserved.
  absl::StatusOr<Offer> AttachOrCreate(const Request& request,
                                       const Client& client, absl::Time now);

  // Whether the client has the lock now; false: somebody else has.
  absl::StatusOr<bool> Lock(const std::string& name, const Client& client);
  absl::Status Unlock(const std::string& name, const Client& client);
  // Whom one waits for, for a message.
  std::string DescribeBusy(const std::string& name) const;

  // Whether it may be sealed by this client, and what the store calls it.
  absl::StatusOr<Saved> CheckSeal(const std::string& name,
                                  const Client& client) const;
  absl::Status Seal(const std::string& name, const Client& client);

  // The same for dropping.
  absl::StatusOr<Saved> CheckDrop(const std::string& name,
                                  const Client& client) const;
  // What was kept, for the caller to let go of.
  absl::StatusOr<std::shared_ptr<const Content>> Drop(const std::string& name,
                                                      const Client& client);
  // The store was to remove it, and did not say that it has: see Saved.
  void Doubt(const std::string& name);

  // Gives back what a connection has reserved. Whether anything changed.
  bool AbandonAll(std::uint64_t session);
  // That, and what it has locked. Whether anything changed.
  bool EndSession(std::uint64_t session);
  // AbandonAll(), for a connection that has ended while its process may still write
  // to what it has locked: these locks stay. `why` is empty while the process has
  // not ended, and another connection of it may take them over; else it says why
  // its end proves nothing. Whether there are such locks.
  bool LeaveLocked(std::uint64_t session, const std::string& why);
  // What `from` has locked is from now on locked by `to`, another connection of
  // the same process.
  void PassLocks(std::uint64_t from, std::uint64_t to);

  // How many names are taken, of whatever state.
  std::size_t size() const { return entries_.size(); }

  // What comes after `name`, at most `count`.
  Page List(const std::string& name, std::size_t count) const;
  // Everything about one, as it is listed.
  std::optional<KeptMemory> Find(const std::string& name) const;

 private:
  struct Entry {
    KeptState state = KeptState::kReserved;
    bool arriving = false;  // Reserved, and a put is under way.
    Client by;              // Who put it or has it reserved.
    Client holder;          // Of the lock, if kLocked.
    // With kLocked: the connection has ended, and `why` of LeaveLocked().
    std::optional<std::string> left;
    absl::Time since;
    std::uint64_t bytes = 0;    // That it counts for.
    std::uint64_t handles = 0;  // The same.
    // Whether it counts for a name: of all, and of its user. What is to replace
    // memory has the name of that, and of another user's one more of its own.
    bool takes_name = true;
    bool takes_name_of_user = true;
    std::uint64_t attached = 0;
    std::shared_ptr<const Content> content;
    Saved saved;
    std::vector<Saved> replaced;  // See ReplacedBy().
    bool IsLockedBy(std::uint64_t session) const {
      return state == KeptState::kLocked && holder.session == session;
    }
  };

  // What is kept no more and somebody still has, as who sends it does.
  struct Leaving {
    std::weak_ptr<const Content> content;
    platform::UserId user;  // Who put it.
    std::uint64_t bytes = 0;
    std::uint64_t handles = 0;
  };

  const Entry* FindKept(const std::string& name) const;
  Entry* FindKept(const std::string& name);
  // For `more`, beside all that is there, but for what has `name`.
  absl::Status CheckRoom(const std::string& name, const Entry& more);
  // `content` is no more kept, and counts for as long as it is there.
  void CountLeaving(const Entry& entry,
                    const std::shared_ptr<const Content>& content);
  void ForgetGone();
  absl::Status CheckMayDrop(const Entry& entry, const Client& client) const;
  // Whether the client takes over a lock that its process was left with.
  static bool TakesOver(const Entry& entry, const Client& client);
  static void GiveLock(Entry& entry, const Client& client);
  static void FreeLock(Entry& entry);
  static absl::Status CheckFits(const Entry& entry, std::uint64_t size,
                                bool read_write);
  static absl::Status CheckWriter(const Entry* entry, const Client& client,
                                  absl::string_view what);
  static KeptMemory Describe(const std::string& name, const Entry& entry);

  const Limits limits_;
  const platform::UserId keeper_;
  std::map<std::string, Entry> entries_;
  // What is to replace something, by session: counted, and seen by nobody.
  std::map<std::uint64_t, Entry> arriving_;
  std::vector<Leaving> leaving_;
};

}  // namespace vmm::keeper

#endif  // VMMSHARE_VMM_KEEPER_INTERNAL_REGISTRY_H_
