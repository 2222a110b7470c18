// What a keeper finds of its entries after a restart: see store.h. Everything
// found is checked as if a stranger had put it there.
#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"
#include "platform/ipc/shared_memory.h"
#include "vmm/keeper/internal/store.h"

namespace vmm::keeper {
namespace {

using platform::OsHandle;

// Everything that was stored under one id.
struct Found {
  std::map<std::uint32_t, std::vector<OsHandle>> records;  // By revision.
  std::map<std::uint32_t, std::vector<OsHandle>> handles;  // By chunk.

  // Descriptors.
  std::size_t size() const {
    std::size_t count = 0;
    for (const auto& [revision, copies] : records) count += copies.size();
    for (const auto& [chunk, copies] : handles) count += copies.size();
    return count;
  }

  // Of its handles, by chunk.
  std::vector<platform::FileNumber> Files() const {
    std::vector<platform::FileNumber> files;
    for (const auto& [chunk, copies] : handles) {
      for (const OsHandle& handle : copies) {
        if (const auto file = platform::FileNumberOf(handle)) {
          files.push_back(*file);
        }
      }
    }
    return files;
  }
};

absl::StatusOr<Record> ReadRecord(const OsHandle& handle) {
  ASSIGN_OR_RETURN(const platform::SharedMemory memory,
                   platform::SharedMemory::Open(handle, kRecordBytes,
                                                platform::PeerAccess::kRead));
  return DecodeRecord(memory.bytes().subspan(0, kRecordBytes));
}

absl::Status Half(absl::string_view what) {
  return absl::DataLossError(
      absl::StrCat(what,
                   ": half an entry, as a keeper leaves that is killed "
                   "while it stores or drops one"));
}

// The record that counts.
absl::StatusOr<Record> LatestRecord(std::uint64_t id, const Found& found) {
  if (found.records.empty()) return Half("handles without a record");
  const auto& [revision, copies] = *found.records.rbegin();
  if (copies.size() != 1) {
    return absl::DataLossError(
        absl::StrCat(copies.size(), " records have the same name"));
  }
  ASSIGN_OR_RETURN(Record record, ReadRecord(copies.front()));
  if (record.id != id || record.revision != revision) {
    return absl::DataLossError("the record is stored under another's name");
  }
  return record;
}

absl::StatusOr<Content> Assemble(const Ticket& ticket, Found& found) {
  RETURN_IF_ERROR(CheckTicketIsOfHere(ticket));
  const std::size_t count = ticket.layout.count();
  if (ticket.kind == HandleKind::kFabric || found.handles.size() != count) {
    return Half(absl::StrCat(found.handles.size(), " of ", count, " handles"));
  }
  Content content{ticket, {}};
  for (auto& [chunk, copies] : found.handles) {
    if (copies.size() != 1 || chunk != content.handles.size()) {
      return absl::DataLossError(absl::StrCat(copies.size(),
                                              " handles are stored as number ",
                                              chunk, " of ", count));
    }
    content.handles.emplace_back(std::move(copies.front()));
    RETURN_IF_ERROR(CheckHandle(ticket, chunk, content.handles.back()));
  }
  return content;
}

// What there is of each entry. What is of none stays in `handles`.
std::map<std::uint64_t, Found> ById(
    std::vector<platform::StoredHandle>& handles,
    const std::function<void(const std::string&)>& log) {
  std::map<std::uint64_t, Found> by_id;
  for (platform::StoredHandle& stored : handles) {
    absl::StatusOr<StoredName> name = ParseStoredName(stored.name);
    if (!name.ok()) {
      log(absl::StrCat("a descriptor that was passed as \"",
                       absl::CHexEscape(stored.name),
                       "\" is closed: ", name.status().message()));
      continue;
    }
    Found& found = by_id[name->id];
    (name->is_record ? found.records : found.handles)[name->number].push_back(
        std::move(stored.handle));
  }
  return by_id;
}

}  // namespace

Store::Restored Store::TakeWhole(const Record& record, Content content,
                                 std::vector<platform::FileNumber> files) {
  const std::size_t handles = content.handles.size();
  stored_ += handles + 1;
  Restored whole{
      record, std::make_shared<const Content>(std::move(content)), {}, {}};
  // Without a service manager it is served, and not there the next time.
  if (manager_.has_value()) {
    whole.saved.id = record.id;
    entries_[record.id] = {record, handles, record.revision, record.revision,
                           std::move(files)};
  }
  return whole;
}

std::vector<Store::Restored> Store::Restore(
    platform::StoredHandles handles,
    const std::function<void(const std::string&)>& log) {
  for (const std::string& problem : handles.problems) log(problem);
  std::map<std::uint64_t, Found> by_id = ById(handles.handles, log);
  // Whether it is removed. Who takes one such message no more is sent no others.
  bool takes_more = true;
  const auto forget = [&](const std::string& name) {
    takes_more = takes_more && Forget(name);
    return takes_more;
  };
  std::vector<Restored> whole;
  for (auto& [id, found] : by_id) {
    const std::vector<platform::FileNumber> files = found.Files();
    absl::StatusOr<Record> record = LatestRecord(id, found);
    absl::StatusOr<Content> content =
        record.ok() ? Assemble(record->ticket, found) : record.status();
    const bool of_newer = absl::IsUnimplemented(record.status());
    const bool is_whole = content.ok();
    if (is_whole) {
      whole.push_back(TakeWhole(*record, *std::move(content), files));
    } else {
      log(absl::StrCat("a stored entry is ",
                       of_newer ? "left alone" : "refused", ": ",
                       content.status().message()));
    }
    // What counts stays, and what is a newer keeper's; all else of it goes, older
    // records first: what is left by a keeper that is killed meanwhile must not be
    // taken for whole.
    std::size_t left = of_newer ? found.size() : 0;
    for (const auto& [revision, copies] : found.records) {
      if (of_newer || (is_whole && revision == record->revision)) continue;
      if (forget(NameOfRecord(id, revision))) continue;
      left += copies.size();
      if (!is_whole) continue;
      // It goes with the entry: or it would be that, once the later one has gone.
      entries_[id].older.push_back(revision);
      entries_[id].older_count += copies.size();
    }
    for (const auto& [chunk, copies] : found.handles) {
      if (of_newer || is_whole) continue;
      if (!forget(NameOfHandle(id, chunk))) left += copies.size();
    }
    stored_ += left;
    if (left > 0 && !is_whole) entries_[id] = Unnamed(files);
  }
  RemoveReplaced(whole, log);
  return whole;
}

void Store::RemoveReplaced(std::vector<Restored>& whole,
                           const std::function<void(const std::string&)>& log) {
  // By what they were before any of them moves.
  std::set<std::uint64_t> replaced;
  for (const Restored& old : whole) {
    const Record& a = old.record;
    for (const Restored& other : whole) {
      const Record& b = other.record;
      // Or by one that itself was replaced and removed.
      if (a.name == b.name &&
          (b.replaces == a.id ||
           (a.replaces != b.id && b.replaces != 0 && a.since < b.since))) {
        replaced.insert(a.id);
      }
    }
  }
  const auto old_begins = std::stable_partition(
      whole.begin(), whole.end(),
      [&](const Restored& one) { return replaced.count(one.record.id) == 0; });
  std::vector<Restored> old(std::make_move_iterator(old_begins),
                            std::make_move_iterator(whole.end()));
  whole.erase(old_begins, whole.end());
  std::stable_sort(old.begin(), old.end(),
                   [](const Restored& a, const Restored& b) {
                     return a.record.since < b.record.since;
                   });
  bool answers = true;
  for (const Restored& one : old) {
    log("a stored entry is removed: another one has replaced it");
    if (answers) {
      const absl::Status removed = Remove(one.saved);
      if (removed.ok()) continue;
      // It is asked again by whoever drops or replaces what is kept.
      log(std::string(removed.message()));
      answers = false;
    }
    for (Restored& kept : whole) {
      if (kept.record.name == one.record.name) {
        kept.replaced.push_back(one.saved);
      }
    }
  }
}

}  // namespace vmm::keeper
