#include <windows.h>
// After windows.h.
#include <sddl.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "platform/os/user_name.h"

namespace vmm::platform {

absl::StatusOr<UserId> ParseUser(absl::string_view text) {
  const std::string copy(text);
  PSID sid = nullptr;
  // It takes two letters for a well-known user as well, as in "BA".
  if (copy.rfind("S-", 0) != 0 ||
      !::ConvertStringSidToSidA(copy.c_str(), &sid)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", text,
        "\" is no user. Expected a SID, \"S-1-5-21-...\"; `whoami /user` "
        "prints one's own"));
  }
  char* written = nullptr;
  const bool is_sid = ::ConvertSidToStringSidA(sid, &written) != 0;
  ::LocalFree(sid);
  if (!is_sid) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\" is no SID that can be written"));
  }
  UserId user{std::string(written)};
  ::LocalFree(written);
  return user;
}

}  // namespace vmm::platform
