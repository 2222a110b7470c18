#include "platform/ipc/socket_advice_posix.h"

#include <linux/magic.h>
#include <sys/vfs.h>

#include <cerrno>

#include "absl/strings/str_cat.h"

namespace vmm::platform {

absl::string_view BindAdvice(int code) {
  switch (code) {
    case EROFS:
      return "The directory is mounted read-only here, and who listens makes a "
             "socket in it: mount it writable (who connects may have it "
             "read-only).";
    case EACCES:
      return "This user may not make files in the directory: use one of this "
             "user's, or have its owner run chmod 1777 on it if several users "
             "share it.";
    case EPERM:
    case EOPNOTSUPP:
      return "The file system of the directory may have no sockets (vfat, some "
             "of FUSE and of other machines): use a tmpfs or a local disk.";
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

}  // namespace vmm::platform
