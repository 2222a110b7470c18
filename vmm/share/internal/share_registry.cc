#include "vmm/share/internal/share_registry.h"

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/check.h"
#include "platform/base/status_macros.h"
#include "platform/os/machine.h"

namespace vmm {
namespace {

// Takes the same time wherever the two differ, so that nobody finds a secret
// byte by byte. The volatile keeps the compiler from stopping early.
bool AreEqual(const std::array<std::uint8_t, 16>& a,
              const std::array<std::uint8_t, 16>& b) {
  volatile std::uint8_t differences = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    differences = static_cast<std::uint8_t>(differences | (a[i] ^ b[i]));
  }
  return differences == 0;
}

bool MayHave(const platform::UserId& user, const ShareOptions& options) {
  if (!options.users.has_value() || user == platform::CurrentUser()) {
    return true;
  }
  return std::find(options.users->begin(), options.users->end(), user) !=
         options.users->end();
}

}  // namespace

absl::StatusOr<std::shared_ptr<const PublishedMemory>> MakePublished(
    const Shareable& memory) {
  ASSIGN_OR_RETURN(protocol::Outgoing outgoing, protocol::MakeOutgoing(memory));
  auto published = std::make_shared<PublishedMemory>();
  published->ticket = std::move(outgoing.ticket);
  if (memory.block() != nullptr && memory.keeper() == nullptr) {
    published->lent = {memory.device().driver(), *memory.block()};
  }
  for (std::size_t i = 0; i < published->ticket.layout.count(); ++i) {
    ASSIGN_OR_RETURN(ExportedHandle handle, outgoing.handle(i));
    published->handles.push_back(std::move(handle));
  }
  return published;
}

absl::Status CheckIsStillThere(const PublishedMemory& memory) {
  return memory.lent.has_value()
             ? CheckIsStillThere(memory.lent->driver, memory.lent->block)
             : absl::OkStatus();
}

protocol::Outgoing OutgoingOf(std::shared_ptr<const PublishedMemory> memory) {
  return {memory->ticket, [memory](std::size_t chunk) {
            return Duplicate(memory->handles[chunk]);
          }};
}

absl::StatusOr<ShareKey> ShareRegistry::Add(Served what, ShareOptions options) {
  ShareKey key;
  RETURN_IF_ERROR(platform::FillRandom(absl::MakeSpan(key.place)));
  RETURN_IF_ERROR(platform::FillRandom(absl::MakeSpan(key.secret)));
  platform::MutexLock lock(mutex_);
  const bool is_new =
      entries_
          .try_emplace(key.place,
                       Entry{key.secret, std::move(what), std::move(options)})
          .second;
  platform::Check(is_new, "64 random bits were drawn twice");
  return key;
}

void ShareRegistry::Withdraw(std::shared_ptr<ShareRegistry> registry,
                             const ShareKey& key) {
  if (registry->made_.is_still_here()) {
    registry->Remove(key);
    return;
  }
  registry->LetGoOfMemory(key);
  platform::Abandon(std::move(registry));
}

void ShareRegistry::LetGoOfMemory(const ShareKey& key) {
  // Closed after the lock is gone.
  std::shared_ptr<const PublishedMemory> memory;
  if (!mutex_.TryLock()) return;
  const platform::MutexLock lock(mutex_, std::adopt_lock);
  const auto found = entries_.find(key.place);
  if (found == entries_.end()) return;
  auto* const held =
      std::get_if<std::shared_ptr<const PublishedMemory>>(&found->second.what);
  if (held != nullptr) held->swap(memory);
}

void ShareRegistry::Remove(const ShareKey& key) {
  // Closed after the lock is gone.
  decltype(entries_)::node_type removed;
  platform::MutexLock lock(mutex_);
  removed = entries_.extract(key.place);
}

std::shared_ptr<const PublishedMemory> ShareRegistry::Exchange(
    const ShareKey& key, std::shared_ptr<const PublishedMemory> memory) {
  platform::MutexLock lock(mutex_);
  const auto found = entries_.find(key.place);
  platform::Check(found != entries_.end(),
                  "memory of a share that was removed");
  std::get<std::shared_ptr<const PublishedMemory>>(found->second.what)
      .swap(memory);
  return memory;
}

absl::StatusOr<std::vector<ShareRegistry::Found>> ShareRegistry::Find(
    absl::Span<const ShareKey> keys, const platform::UserId& user,
    const std::function<absl::Status(absl::Span<const Found>)>& admit) const {
  platform::MutexLock lock(mutex_);
  std::vector<Found> all;
  all.reserve(keys.size());
  for (const ShareKey& key : keys) {
    const auto found = entries_.find(key.place);
    // The same words for both: what a wrong secret is of is not told.
    if (found == entries_.end() ||
        !AreEqual(found->second.secret, key.secret)) {
      return absl::NotFoundError(
          "nothing is served here under this key: its Share was withdrawn, "
          "closed or dropped, or the owner has restarted. Ask the owner for a "
          "new text, and to keep its Share meanwhile");
    }
    const Entry& entry = found->second;
    if (!MayHave(user, entry.options)) {
      return absl::PermissionDeniedError(
          absl::StrCat("it is not shared with user ", user.text(),
                       ". The owner names users in ShareOptions::users"));
    }
    if (entry.what == Served()) {
      return absl::ResourceExhaustedError(
          "its owner has released the memory and not restored it yet. Wait "
          "longer, or have the owner restore it");
    }
    all.push_back({entry.what, entry.options.access});
  }
  if (admit != nullptr) RETURN_IF_ERROR(admit(all));
  return all;
}

}  // namespace vmm
