// Store: what a keeper has the service manager hold for it; internal to vmm/.
//
// An entry is its handles, each under a name of its own, and a record of what
// they are, in sealed memory. The record is stored last and removed first: an
// entry without one is half an entry, which was never promised to anybody.
// Sealing stores a record of the next revision and then removes the old one.
// So a keeper that is killed between any two steps finds every entry whole,
// sealed if that was ever answered, or not at all. What replaces an entry says so
// in its record, and the old one is removed after that is stored: a keeper that
// finds both has the new one.
#ifndef VMMSHARE_VMM_KEEPER_INTERNAL_STORE_H_
#define VMMSHARE_VMM_KEEPER_INTERNAL_STORE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "platform/os/deadline.h"
#include "platform/os/service_manager.h"
#include "vmm/keeper/internal/record.h"
#include "vmm/keeper/internal/registry.h"

namespace vmm::keeper {

// Thread-compatible.
class Store {
 public:
  // Without a service manager nothing survives a restart; note() says so.
  explicit Store(absl::StatusOr<platform::ServiceManager> manager);

  // Why nothing survives a restart; empty when it does.
  const std::string& note() const { return note_; }
  // Tells the service manager, if there is one, that the keeper serves.
  absl::Status Ready();

  // An entry that was kept before.
  struct Restored {
    Record record;
    std::shared_ptr<const Content> content;
    Saved saved;
    // What it has replaced, and the store did not say that it is removed; the
    // oldest first.
    std::vector<Saved> replaced = {};
  };
  // What of `handles` makes whole entries. The rest is closed, removed from the
  // service manager and reported to `log`, one line each; but records of a
  // newer version stay there, with their handles, for a newer keeper, and take
  // their room.
  std::vector<Restored> Restore(
      platform::StoredHandles handles,
      const std::function<void(const std::string&)>& log);

  // What an entry is from the beginning.
  struct As {
    bool sealed = false;
    Saved replaces = {};  // Counts no more from the moment this is stored.
  };
  // Stores an entry. The answer does not survive a restart when `why` says why.
  // Nothing of it that could be taken for whole is left there then, unless the
  // answer is in doubt; half of it may be, which takes its room, and its memory is
  // not stored again until this keeper ends. Memory that `as.replaces` is already
  // stays as it is: the answer is that.
  Saved Save(const std::string& name, const Client& client,
             const Content& content, absl::Time since, const As& as,
             std::string* why);
  // The entry is sealed in the store when this returns OK, or not there. OK for
  // one that is not stored.
  absl::Status Seal(const Saved& saved);
  // The same for removing it. After an error nobody knows whether it is still
  // stored; it may be removed again.
  absl::Status Remove(const Saved& saved);

 private:
  struct Entry {
    Record record;
    std::size_t handles = 0;
    // Revisions of its records that may be there.
    std::uint32_t first_revision = 1, last_revision = 1;
    std::vector<platform::FileNumber> files = {};  // Of its handles.
    bool is_leaving = false;  // It was to be removed; nobody said that it is.
    // Revisions of records from before this keeper that it could not remove, in
    // order, and how many descriptors they are.
    std::vector<std::uint32_t> older = {};
    std::size_t older_count = 0;
  };
  // What is there and nobody has the id of: it takes its room, and of its files
  // the service manager would take none again.
  static Entry Unnamed(std::vector<platform::FileNumber> files) {
    return {{}, 0, 1, 1, std::move(files), true};
  }

  absl::Status StoreRecord(const Record& record, Deadline deadline);
  // `sent`: how many of its descriptors were; the record is the last.
  absl::Status StoreAll(const Record& record, const Content& content,
                        Deadline deadline, std::size_t* sent);
  // Of its records, and then of its handles.
  absl::Status RemoveAll(const Entry& entry, Deadline deadline);
  // Whether one of `files` is in the store, or twice among them.
  bool IsStored(const std::vector<platform::FileNumber>& files) const;
  // An entry that was found whole.
  Restored TakeWhole(const Record& record, Content content,
                     std::vector<platform::FileNumber> files);
  // Removes those of `whole` that another of them has replaced.
  void RemoveReplaced(std::vector<Restored>& whole,
                      const std::function<void(const std::string&)>& log);
  // False where it may stay: it is found again after a restart. True without a
  // service manager.
  bool Forget(absl::string_view name);

  std::optional<platform::ServiceManager> manager_;
  std::string note_;
  std::map<std::uint64_t, Entry> entries_;  // By Saved::id.
  std::uint64_t stored_ = 0;                // Descriptors in the store.
};

}  // namespace vmm::keeper

#endif  // VMMSHARE_VMM_KEEPER_INTERNAL_STORE_H_
