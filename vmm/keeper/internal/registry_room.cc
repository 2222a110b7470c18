// Whether there is room for more: see registry.h.

#include "absl/strings/str_cat.h"
#include "vmm/keeper/internal/registry.h"

namespace vmm::keeper {
namespace {

absl::Status Full(absl::string_view whose, absl::string_view what,
                  std::uint64_t has, std::uint64_t more, std::uint64_t limit,
                  bool is_some_leaving) {
  return absl::ResourceExhaustedError(absl::StrCat(
      whose, " ", has, " ", what, "; ", more, " more pass the limit of ", limit,
      is_some_leaving ? ". Of these some are dropped or replaced and still "
                        "being sent to a client: try again"
                      : "",
      ". Drop what is not needed, or start the keeper with a "
      "higher limit (`vmmshare keep --help`)."));
}

// Written so that no sum overflows.
bool Passes(std::uint64_t has, std::uint64_t more, std::uint64_t limit) {
  return limit != 0 && (has > limit || more > limit - has);
}

std::uint64_t Sum(std::uint64_t a, std::uint64_t b) {
  return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

}  // namespace

void Registry::ForgetGone() {
  std::erase_if(leaving_,
                [](const Leaving& one) { return one.content.expired(); });
}

void Registry::CountLeaving(const Entry& entry,
                            const std::shared_ptr<const Content>& content) {
  ForgetGone();
  leaving_.push_back({content, entry.by.user, entry.bytes, entry.handles});
}

absl::Status Registry::CheckRoom(const std::string& name, const Entry& more) {
  ForgetGone();
  struct Use {
    std::uint64_t names = 0;
    std::uint64_t bytes = 0;
    std::uint64_t handles = 0;
    bool is_some_leaving = false;
    void Add(std::uint64_t more_bytes, std::uint64_t more_handles) {
      bytes = Sum(bytes, more_bytes);
      handles = Sum(handles, more_handles);
    }
    void Add(const Entry& entry, bool takes_name) {
      if (takes_name) ++names;
      Add(entry.bytes, entry.handles);
    }
    // Its name is free.
    void Add(const Leaving& leaving) {
      is_some_leaving = true;
      Add(leaving.bytes, leaving.handles);
    }
  };
  Use all;
  Use user;
  const platform::UserId& own = more.by.user;
  const auto add = [&](const Entry& entry) {
    all.Add(entry, entry.takes_name);
    if (entry.by.user == own) user.Add(entry, entry.takes_name_of_user);
  };
  for (const auto& [each, entry] : entries_) {
    if (each != name) add(entry);  // Else this client's own reservation.
  }
  for (const auto& [session, entry] : arriving_) add(entry);
  for (const Leaving& leaving : leaving_) {
    all.Add(leaving);
    if (leaving.user == own) user.Add(leaving);
  }
  struct Row {
    const Use& use;
    std::string whose;
    bool takes_name;
    std::uint64_t names, bytes, handles;
  };
  const Row rows[] = {
      {all, "the keeper is full: it has", more.takes_name, limits_.names,
       limits_.bytes, limits_.handles},
      {user, absl::StrCat("the quota is used: user ", own.text(), " has"),
       more.takes_name_of_user, limits_.user_names, limits_.user_bytes,
       limits_.user_handles}};
  for (const Row& row : rows) {
    if (row.takes_name && Passes(row.use.names, 1, row.names)) {
      return Full(row.whose, "names", row.use.names, 1, row.names, false);
    }
    if (Passes(row.use.bytes, more.bytes, row.bytes)) {
      return Full(row.whose, "bytes", row.use.bytes, more.bytes, row.bytes,
                  row.use.is_some_leaving);
    }
    if (Passes(row.use.handles, more.handles, row.handles)) {
      return Full(row.whose, "handles", row.use.handles, more.handles,
                  row.handles, row.use.is_some_leaving);
    }
  }
  return absl::OkStatus();
}

}  // namespace vmm::keeper
