#include "platform/ipc/peer_posix.h"

#include <sys/socket.h>

#include <atomic>
#include <cstdint>
#include <cstdio>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"
#include "platform/os/descriptor_posix.h"
#include "platform/os/os_error.h"
#include "platform/os/text_file_posix.h"

namespace vmm::platform {
namespace {

// The number under which the kernel shows every user who has none in this
// user namespace, unless kernel.overflowuid says another.
constexpr uid_t kOverflowUser = 65534;

// What kernel.overflowuid says; read once, as every message is looked at.
uid_t OverflowUser() {
  constexpr std::int64_t kUnknown = -1;
  static std::atomic<std::int64_t> known{kUnknown};
  std::int64_t user = known.load(std::memory_order_relaxed);
  if (user == kUnknown) {
    const absl::StatusOr<uid_t> read =
        ReadOverflowUser("/proc/sys/kernel/overflowuid");
    user = read.ok() ? *read : kOverflowUser;
    // For want of a descriptor it is asked again.
    if (read.ok() || absl::IsNotFound(read.status()) ||
        absl::IsPermissionDenied(read.status())) {
      known.store(user, std::memory_order_relaxed);
    }
  }
  return static_cast<uid_t>(user);
}

// Whether every user has a number here. If not, the overflow user is no identity.
bool AllUsersAreMapped() {
  const absl::StatusOr<std::string> map = ReadTextFile("/proc/self/uid_map");
  unsigned inside = 1, outside = 1, count = 0;
  return map.ok() &&
         std::sscanf(map->c_str(), "%u %u %u", &inside, &outside, &count) ==
             3 &&
         inside == 0 && count == 0xffffffffu;
}

}  // namespace

absl::StatusOr<PeerCredentials> ReadPeer(const OsHandle& socket) {
  ucred about{};
  socklen_t size = sizeof(about);
  if (::getsockopt(Fd(socket), SOL_SOCKET, SO_PEERCRED, &about, &size) != 0) {
    return LastError().Of(
        absl::StrCat("getsockopt(", socket.get(), ", SO_PEERCRED)"));
  }
  return PeerCredentials{UserId(absl::StrCat(about.uid)), about.pid};
}

absl::Status CheckPeer(const PeerCredentials& peer, const PeerPolicy& policy) {
  RETURN_IF_ERROR(CheckListed(peer, policy));
  if (StandsForUnknownUsers(peer.user)) {
    return absl::PermissionDeniedError(absl::StrCat(
        "the peer is ", Describe(peer),
        ", a number that stands for every user whom this user namespace does "
        "not map, so that nobody can tell who it is. If it is a program of "
        "this container's own, run it as another user than ",
        peer.user.text(), "."));
  }
  return absl::OkStatus();
}

absl::StatusOr<uid_t> ReadOverflowUser(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  std::uint32_t user = 0;
  if (!absl::SimpleAtoi(text, &user)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " says \"", absl::CHexEscape(text),
                     "\"; expected the number of a user"));
  }
  return user;
}

bool StandsForUnknownUsers(const UserId& user) {
  // Also where kernel.overflowuid cannot be read.
  if (user.text() == absl::StrCat(kOverflowUser)) return !AllUsersAreMapped();
  return StandsForUnknownUsers(user, OverflowUser());
}

bool StandsForUnknownUsers(const UserId& user, uid_t overflow) {
  return (user.text() == absl::StrCat(kOverflowUser) ||
          user.text() == absl::StrCat(overflow)) &&
         !AllUsersAreMapped();
}

bool CurrentUserIsUnknown() { return StandsForUnknownUsers(CurrentUser()); }

bool MayOwnPath(uid_t uid, const PeerPolicy& policy) {
  return uid == 0 || IsListed(UserId(absl::StrCat(uid)), policy);
}

}  // namespace vmm::platform
