#include "vmm/keeper/internal/store.h"

#include <algorithm>
#include <array>
#include <set>
#include <variant>

#include "absl/strings/str_cat.h"
#include "platform/base/annotate.h"
#include "platform/base/status_macros.h"
#include "platform/ipc/shared_memory.h"
#include "platform/os/machine.h"

namespace vmm::keeper {
namespace {

// How long the service manager may take to read what it was sent.
constexpr absl::Duration kPatience = absl::Seconds(5);

absl::StatusOr<std::uint64_t> RandomId() {
  std::array<std::uint8_t, 8> bytes{};
  RETURN_IF_ERROR(platform::FillRandom(absl::MakeSpan(bytes)));
  std::uint64_t id = 0;
  for (std::uint8_t byte : bytes) id = id << 8 | byte;
  return std::max(id, std::uint64_t{1});  // 0 is the id of none.
}

// Of its handles, where the service manager would store one of two once.
std::vector<platform::FileNumber> FilesOf(const Content& content) {
  std::vector<platform::FileNumber> files;
  for (const ExportedHandle& handle : content.handles) {
    const auto* os_handle = std::get_if<platform::OsHandle>(&handle);
    if (os_handle == nullptr) continue;
    if (const auto file = platform::FileNumberOf(*os_handle)) {
      files.push_back(*file);
    }
  }
  return files;
}

}  // namespace

Store::Store(absl::StatusOr<platform::ServiceManager> manager) {
  if (!manager.ok()) {
    note_ = absl::StrCat("nothing survives a restart of this keeper: ",
                         manager.status().message());
    return;
  }
  manager_ = *std::move(manager);
  if (manager_->capacity() == 0u) {
    note_ =
        "nothing survives a restart of this keeper: systemd stores no "
        "descriptors for it. Set FileDescriptorStoreMax= in its unit.";
  }
}

absl::Status Store::Ready() {
  if (!manager_.has_value()) return absl::OkStatus();
  return manager_->Ready(Deadline::In(kPatience));
}

absl::Status Store::StoreRecord(const Record& record, Deadline deadline) {
  ASSIGN_OR_RETURN(platform::SharedMemory memory,
                   platform::SharedMemory::Create(kRecordBytes,
                                                  platform::PeerAccess::kRead));
  const std::vector<std::uint8_t> bytes = EncodeRecord(record);
  std::copy(bytes.begin(), bytes.end(), memory.writable_bytes().begin());
  return manager_->Store(NameOfRecord(record.id, record.revision),
                         memory.handle(), deadline);
}

absl::Status Store::StoreAll(const Record& record, const Content& content,
                             Deadline deadline, std::size_t* sent) {
  for (std::size_t i = 0; i < content.handles.size(); ++i) {
    RETURN_IF_ERROR(manager_->Store(
        NameOfHandle(record.id, i),
        std::get<platform::OsHandle>(content.handles[i]), deadline));
    ++*sent;
  }
  RETURN_IF_ERROR(StoreRecord(record, deadline));
  ++*sent;
  return manager_->Barrier(deadline);
}

bool Store::Forget(absl::string_view name) {
  return !manager_.has_value() ||
         manager_->Remove(name, Deadline::In(kPatience)).ok();
}

absl::Status Store::RemoveAll(const Entry& entry, Deadline deadline) {
  const std::uint64_t id = entry.record.id;
  absl::Status removed;
  for (std::size_t i = 0; removed.ok() && i < entry.older.size(); ++i) {
    removed = manager_->Remove(NameOfRecord(id, entry.older[i]), deadline);
  }
  for (std::uint64_t revision = entry.first_revision;
       removed.ok() && revision <= entry.last_revision; ++revision) {
    removed = manager_->Remove(
        NameOfRecord(id, static_cast<std::uint32_t>(revision)), deadline);
  }
  for (std::size_t i = 0; removed.ok() && i < entry.handles; ++i) {
    removed = manager_->Remove(NameOfHandle(id, i), deadline);
  }
  return removed.ok() ? manager_->Barrier(deadline) : removed;
}

bool Store::IsStored(const std::vector<platform::FileNumber>& files) const {
  std::set<platform::FileNumber> seen;
  for (const auto& [id, entry] : entries_) {
    seen.insert(entry.files.begin(), entry.files.end());
  }
  return !std::all_of(files.begin(), files.end(), [&](const auto& file) {
    return seen.insert(file).second;
  });
}

Saved Store::Save(const std::string& name, const Client& client,
                  const Content& content, absl::Time since, const As& as,
                  std::string* why) {
  if (!note_.empty()) return {};
  if (content.ticket.kind == HandleKind::kFabric) {
    *why = "fabric handles are not stored: they hold no memory";
    return {};
  }
  const auto old = entries_.find(as.replaces.id);
  std::vector<platform::FileNumber> files = FilesOf(content);
  if (IsStored(files)) {
    if (old != entries_.end() && old->second.files == files &&
        !old->second.is_leaving) {
      const Record& record = old->second.record;
      if (record.name == name && record.user == client.user &&
          record.sealed == as.sealed && record.ticket == content.ticket) {
        return as.replaces;
      }
    }
    *why =
        "systemd stores a file once, and has one of its handles already: of "
        "this memory under another name, as another user or a newer keeper put "
        "it, or as it was to be removed";
    return {};
  }
  // One more is there while an entry is being sealed.
  const std::uint64_t needed = content.handles.size() + 1;
  const std::optional<std::uint64_t> capacity = manager_->capacity();
  if (capacity.has_value() && stored_ + needed + 1 > *capacity) {
    *why = absl::StrCat(
        "systemd stores ", stored_, " descriptors of this keeper; ", needed,
        " more and one to spare pass FileDescriptorStoreMax=", *capacity);
    return {};
  }
  absl::StatusOr<std::uint64_t> id = RandomId();
  if (!id.ok()) {
    *why = std::string(id.status().message());
    return {};
  }
  Record record{*id,         1,          as.sealed, name,
                client.user, client.pid, since,     content.ticket};
  if (old != entries_.end()) {
    record.replaces = old->second.record.id;
    // Of two whose middle one has gone the later one counts, whatever the clock
    // was set to meanwhile.
    record.since =
        std::max(since, old->second.record.since + absl::Microseconds(1));
  }
  const Entry entry{std::move(record), content.handles.size(), 1, 1,
                    std::move(files)};
  std::size_t sent = 0;
  absl::Status stored =
      StoreAll(entry.record, content, Deadline::In(kPatience), &sent);
  if (!stored.ok()) {
    *why = std::string(stored.message());
    const absl::Status removed = RemoveAll(entry, Deadline::In(kPatience));
    if (removed.ok() || sent == 0) return {};
  }
  stored_ += sent;
  if (sent < needed) {
    // Without a record it is half an entry, which nobody is told of.
    entries_[*id] = Unnamed(entry.files);
    return {};
  }
  entries_[*id] = entry;
  return {*id, !stored.ok()};
}

absl::Status Store::Seal(const Saved& saved) {
  const auto found = entries_.find(saved.id);
  if (found == entries_.end()) return absl::OkStatus();
  if (saved.in_doubt || found->second.is_leaving) {
    // Or a restart could find it as it was before it was sealed, or not at all.
    return platform::Annotate(Remove(saved), "the seal could not be recorded",
                              "It is not sealed; try again.");
  }
  const Deadline deadline = Deadline::In(kPatience);
  Record sealed = found->second.record;
  sealed.sealed = true;
  // One of a try before may be there: of two with one name none would count.
  sealed.revision = ++found->second.last_revision;
  absl::Status stored = StoreRecord(sealed, deadline);
  if (stored.ok()) stored = manager_->Barrier(deadline);
  if (!stored.ok()) {
    Forget(NameOfRecord(sealed.id, sealed.revision));
    return platform::Annotate(stored, "the seal could not be recorded",
                              "It is not sealed; try again.");
  }
  // Of two records the one of the higher revision counts.
  std::uint32_t& first = found->second.first_revision;
  const Deadline until = Deadline::In(kPatience);
  while (first < sealed.revision &&
         manager_->Remove(NameOfRecord(sealed.id, first), until).ok()) {
    ++first;
  }
  found->second.record = std::move(sealed);
  return absl::OkStatus();
}

absl::Status Store::Remove(const Saved& saved) {
  const auto found = entries_.find(saved.id);
  if (found == entries_.end()) return absl::OkStatus();
  absl::Status removed = RemoveAll(found->second, Deadline::In(kPatience));
  if (!removed.ok()) {
    // What was sent may be obeyed later, and nothing takes it back.
    found->second.is_leaving = true;
    return platform::Annotate(
        removed, "the store did not say that it is removed",
        "It is kept until this keeper ends, and may or may not be there "
        "after a restart; try again.");
  }
  stored_ -= found->second.handles + 1 + found->second.older_count;
  entries_.erase(found);
  return absl::OkStatus();
}

}  // namespace vmm::keeper
