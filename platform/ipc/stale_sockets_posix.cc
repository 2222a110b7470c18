#include "platform/ipc/stale_sockets_posix.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "platform/base/status_macros.h"
#include "platform/ipc/hang_up_posix.h"
#include "platform/ipc/peer.h"
#include "platform/ipc/socket_path_posix.h"
#include "platform/os/descriptor_posix.h"
#include "platform/os/os_error.h"
#include "platform/os/text_file_posix.h"

namespace vmm::platform {
namespace {

// The kernel makes the file of a socket some instants before the socket answers
// to it.
constexpr time_t kOlder = 10;

// Which <linux/magic.h> has in newer releases only, or not at all.
constexpr std::uint32_t kCifs = 0xFF534D42;
constexpr std::uint32_t kSmb2 = 0xFE534D42;
constexpr std::uint32_t kCeph = 0x00C36400;
constexpr std::uint32_t kOcfs2 = 0x7461636F;
constexpr std::uint32_t kGfs2 = 0x01161970;
constexpr std::uint32_t kLustre = 0x0BD00BD0;
constexpr std::uint32_t kGpfs = 0x47504653;
constexpr std::uint32_t kBeeGfs = 0x19830326;

bool IsRandomName(absl::string_view name) {
  return name.size() == 32 &&
         name.find_first_not_of("0123456789abcdef") == absl::string_view::npos;
}

bool OthersMayWrite(const struct stat& folder) {
  return (folder.st_mode & (S_IWGRP | S_IWOTH)) != 0;
}

// Whether only this user writes there, and only processes of this kernel. The
// socket of another machine's process looks as if nobody had it, and so does one
// that was bound beneath an overlay.
bool IsPrivateAndLocal(const std::string& directory) {
  const OsHandle folder = AdoptDescriptor(
      ::open(directory.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  const int fd = Fd(folder);
  struct stat about {};
  struct statfs system {};
  if (!folder.has_value() || ::fstat(fd, &about) != 0 ||
      OthersMayWrite(about) || ::fstatfs(fd, &system) != 0) {
    return false;
  }
  switch (system.f_type) {
    case TMPFS_MAGIC:
    case EXT4_SUPER_MAGIC:
    case XFS_SUPER_MAGIC:
    case BTRFS_SUPER_MAGIC:
      return true;
    default:
      return false;
  }
}

// What the kernel says to who connects to `path` with a socket of another type:
// EPROTOTYPE while any process has the socket of that file, ECONNREFUSED when
// none has. A listener does not notice.
int Probe(const OsHandle& datagrams, const std::string& path) {
  const absl::StatusOr<SocketAddress> address = MakeSocketAddress(path);
  if (!address.ok()) return EINVAL;
  return ::connect(Fd(datagrams), address->get(), address->size) == 0 ? 0
                                                                      : errno;
}

// Whether the open `directory` is on a file system that other machines may have as
// well, as they have one of NFS: the socket of a listener of theirs looks from here
// as if nobody had it. `path` is for the message of an error.
absl::StatusOr<bool> MayBeOfOtherMachines(const OsHandle& directory,
                                          const std::string& path) {
  struct statfs system {};
  while (::fstatfs(Fd(directory), &system) != 0) {
    if (errno != EINTR) {
      return LastError().Of(absl::StrCat("fstatfs(", path, ")"));
    }
  }
  // Neither 9p nor FUSE: a container's own root is one of them (of gVisor, and of
  // rootless Podman with fuse-overlayfs), where what is started again must have
  // its socket's name.
  switch (static_cast<std::uint32_t>(system.f_type)) {
    case NFS_SUPER_MAGIC:
    case SMB_SUPER_MAGIC:
    case AFS_SUPER_MAGIC:
    case kCifs:
    case kSmb2:
    case kCeph:
    case kOcfs2:
    case kGfs2:
    case kLustre:
    case kGpfs:
    case kBeeGfs:
      return true;
    default:
      return false;
  }
}

}  // namespace

absl::Status RemoveStaleSocket(const std::string& path,
                               const SocketAddress& address,
                               const OsHandle& directory) {
  struct stat about;
  if (::lstat(path.c_str(), &about) != 0) {
    return errno == ENOENT ? absl::OkStatus()
                           : LastError().Of(absl::StrCat("lstat(", path, ")"));
  }
  if (!S_ISSOCK(about.st_mode) || about.st_uid != ::geteuid()) {
    return absl::AlreadyExistsError(
        absl::StrCat(path, " exists and is ",
                     S_ISSOCK(about.st_mode)
                         ? absl::StrCat("a socket of user ", about.st_uid)
                         : std::string("not a socket"),
                     "; it is left alone. Choose another name."));
  }
  OsHandle probe = AdoptDescriptor(
      ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!probe.has_value()) return LastError().Of("socket(AF_UNIX)");
  if (::connect(Fd(probe), address.get(), address.size) == 0 ||
      errno != ECONNREFUSED) {
    HangUp(std::move(probe), HeldBy::kThisProcessAlone,
           Connections::kOfStrangers);
    return TakenByProcessError(absl::StrCat(
        path, " is the socket of a living process. Choose another name."));
  }
  ASSIGN_OR_RETURN(const bool may_be_of_others,
                   MayBeOfOtherMachines(directory, path));
  if (may_be_of_others) {
    return absl::AlreadyExistsError(absl::StrCat(
        path,
        " lies on a file system that other machines may have, too: whether a "
        "process of theirs listens there cannot be seen from here. Use a "
        "directory of this machine alone, or remove the file."));
  }
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) {
    return LastError().Of(absl::StrCat("unlink(", path, ")"));
  }
  return absl::OkStatus();
}

void SweepStaleSockets(const std::string& own) {
  const std::string directory = own.substr(0, own.rfind('/'));
  // Who else may write there may have filled it with names.
  struct stat folder {};
  if (::lstat(absl::StrCat(directory, "/.").c_str(), &folder) != 0 ||
      OthersMayWrite(folder)) {
    return;
  }
  const absl::StatusOr<std::vector<std::string>> names = NamesIn(directory);
  struct stat mine {};
  if (!names.ok() || ::lstat(own.c_str(), &mine) != 0) return;
  std::vector<std::string> old;
  for (const std::string& name : *names) {
    const std::string path = absl::StrCat(directory, "/", name);
    struct stat about {};
    if (IsRandomName(name) && ::lstat(path.c_str(), &about) == 0 &&
        S_ISSOCK(about.st_mode) && about.st_uid == ::geteuid() &&
        about.st_mtime <= mine.st_mtime - kOlder) {
      old.push_back(path);
    }
  }
  if (old.empty() || !IsPrivateAndLocal(directory)) return;
  const OsHandle probe = AdoptDescriptor(
      ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  // Systems that only look like Linux may say something else.
  if (!probe.has_value() || Probe(probe, own) != EPROTOTYPE) return;
  for (const std::string& path : old) {
    if (Probe(probe, path) == ECONNREFUSED) ::unlink(path.c_str());
  }
}

}  // namespace vmm::platform
