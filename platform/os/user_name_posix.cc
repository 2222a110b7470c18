#include <pwd.h>
#include <sys/types.h>

#include <cerrno>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "platform/os/os_error.h"
#include "platform/os/user_name.h"

namespace vmm::platform {
namespace {

// No user's: chown() and setuid() take it for "leave as it is".
constexpr std::uint64_t kNobodysUid = 0xffffffff;

absl::Status NoUser(absl::string_view text, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text, "\" is no user: ", why,
                   ". Expected a uid from 0 to 4294967294, or the name of a "
                   "user of this system"));
}

// Whether getpwnam_r() says that there is no such user, on one system or another,
// as its manual has it. Every other error is one of the lookup.
bool MeansNoSuchUser(int error) {
  return error == 0 || error == ENOENT || error == ESRCH || error == EBADF ||
         error == EPERM;
}

}  // namespace

absl::StatusOr<UserId> ParseUser(absl::string_view text) {
  if (text.empty()) return NoUser(text, "it is empty");
  if (text.find_first_not_of("0123456789") == absl::string_view::npos) {
    std::uint64_t uid = 0;
    if (!absl::SimpleAtoi(text, &uid) || uid >= kNobodysUid) {
      return NoUser(text, "the number is too large");
    }
    return UserId(absl::StrCat(uid));
  }
  const std::string name(text);
  std::vector<char> memory(1024);
  passwd entry{};
  passwd* found = nullptr;
  int error = 0;
  while ((error = ::getpwnam_r(name.c_str(), &entry, memory.data(),
                               memory.size(), &found)) == EINTR ||
         (error == ERANGE && memory.size() < (std::size_t{1} << 20))) {
    if (error == ERANGE) memory.resize(2 * memory.size());
  }
  if (found != nullptr) return UserId(absl::StrCat(entry.pw_uid));
  if (MeansNoSuchUser(error)) return NoUser(text, "nobody has this name here");
  return OsError(error, absl::StrCat("getpwnam_r(", name, ")"));
}

}  // namespace vmm::platform
