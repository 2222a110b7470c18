#include "platform/ipc/socket_advice_posix.h"

#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "platform/ipc/socket_path_posix.h"
#include "platform/os/process.h"

namespace vmm::platform {
namespace {

// For a directory in which this process may not make files.
std::string NoFilesAdvice(const std::string& directory) {
  constexpr mode_t kToMakeFiles = S_IWUSR | S_IXUSR;
  struct stat about;
  if (::lstat(directory.c_str(), &about) == 0 && about.st_uid == ::geteuid() &&
      (about.st_mode & kToMakeFiles) != kToMakeFiles) {
    return absl::StrFormat(
        "The directory is this user's own, and its mode, %04o, keeps this user "
        "out: run chmod u+rwx on it.",
        static_cast<unsigned>(about.st_mode & 07777));
  }
  return "This user may not make files in the directory: use one of this "
         "user's, or have its owner run chmod 1777 on it if several users "
         "share it.";
}

}  // namespace

std::string BindAdvice(int code, const std::string& directory) {
  switch (code) {
    case EROFS:
      return "The directory is mounted read-only here, and who listens makes a "
             "socket in it: mount it writable (who connects may have it "
             "read-only).";
    case EACCES:
      return NoFilesAdvice(directory);
    case EPERM:
    case EOPNOTSUPP:
      return "The file system of the directory may have no sockets (vfat, some "
             "of FUSE and of other machines): use a tmpfs or a local disk.";
    case ENOSPC:
    case EDQUOT:
      return "The file system of the directory has no room for a further file, "
             "or this user's quota is used (df -i, quota): remove files there, "
             "or use another directory.";
    default:
      return "";
  }
}

std::string NobodyListens(const std::string& directory) {
  std::string text = "Nobody listens there.";
  struct statfs system {};
  if (::statfs(directory.c_str(), &system) == 0 &&
      system.f_type == OVERLAYFS_SUPER_MAGIC) {
    absl::StrAppend(&text, " Or an overlay hides who does: ", directory,
                    " is in one here, and sockets cannot be reached through "
                    "it. Mount a volume or a folder of the host's on both "
                    "sides.");
  }
  return text;
}

std::string ConnectAdvice(const std::string& address) {
  struct stat about;
  if (::lstat(address.c_str(), &about) != 0) return "";
  const bool is_own = about.st_uid == ::geteuid();
  const std::string found = absl::StrFormat(
      "The socket is of %s and has mode %04o", OwnerText(about.st_uid),
      static_cast<unsigned>(about.st_mode & 07777));
  if ((about.st_mode & (is_own ? S_IWUSR : S_IWOTH)) != 0) {
    return absl::StrCat(found,
                        ", which lets this process connect: look at the rules "
                        "of SELinux or AppArmor (docs/containers.md).");
  }
  if (is_own) {
    return absl::StrCat(found,
                        ": somebody changed it, so start the listener "
                        "anew.");
  }
  return absl::StrCat(found, ", as its listener names no other user. ",
                      TwoUsersAdvice());
}

absl::string_view LookAdvice(int code) {
  if (code != EACCES) return "";
  return "This user may not enter a directory above it. Run both sides as one "
         "user, or use a directory that both may enter, such as one that "
         "NVIDIA_DRA_LOCAL_IPC_DIR names for whoever listens; if both may, "
         "look at the rules of SELinux or AppArmor (docs/containers.md).";
}

std::string TwoUsersAdvice() {
  return absl::StrCat(
      "This process is of user ", CurrentUser().text(),
      ". Run both sides as one user, or, from C++, have each name the other's "
      "in PeerPolicy::also_allowed (docs/security.md).");
}

}  // namespace vmm::platform
